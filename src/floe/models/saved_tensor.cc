#include "floe/models/saved_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "floe/core/error.h"
#include "floe/nn/load.h"

namespace floe::models {
namespace {

constexpr std::int64_t kStep = std::int64_t{1} << 22;  // elements

void give(const at::Tensor& flat, DType dtype, const SavedTensorReader::Sink& sink) {
  for (std::int64_t done = 0; done < flat.numel(); done += kStep) {
    const at::Tensor piece = flat.narrow(0, done, std::min(kStep, flat.numel() - done))
                                 .to(at::kCPU, nn::torch_dtype(dtype))
                                 .contiguous();
    sink({static_cast<const std::byte*>(piece.const_data_ptr()), piece.nbytes()});
  }
}

// weight + scale · B A, some rows at a time.
void give_adapted(const at::Tensor& flat, const at::Tensor& a_flat, const at::Tensor& b_flat,
                  const SavedTensor& tensor, DType dtype, const SavedTensorReader::Sink& sink) {
  const std::int64_t out = tensor.shape[0], in = tensor.shape[1];
  const at::Tensor a = a_flat.view({-1, in}).to(at::kFloat);
  const at::Tensor b = b_flat.view({out, -1}).to(at::kFloat);
  const at::Tensor weight = flat.view({out, in});
  const std::int64_t step = std::max<std::int64_t>(1, kStep / std::max<std::int64_t>(1, in));
  for (std::int64_t row = 0; row < out; row += step) {
    const std::int64_t rows = std::min(step, out - row);
    const at::Tensor merged = weight.narrow(0, row, rows).to(at::kFloat) +
                              b.narrow(0, row, rows).mm(a) * tensor.adapter->scale;
    give(merged.view({-1}), dtype, sink);
  }
}

}  // namespace

std::int64_t SavedTensor::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::vector<std::string> SavedTensor::parameters() const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const SavedRun& run : runs) add(run.parameter);
  if (adapter) {
    add(adapter->a);
    add(adapter->b);
  }
  return names;
}

WholeParameter whole_parameters(nn::Module& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const nn::NamedParameter& parameter : nn::named_parameters(model))
    tensors[parameter.name] = parameter.tensor;
  return [tensors](const std::string& name) { return tensors.at(name); };
}

void SavedTensorReader::hold(const SavedTensor& tensor) {
  const std::vector<std::string> wanted = tensor.parameters();
  std::erase_if(held_, [&](const auto& item) {
    return std::find(wanted.begin(), wanted.end(), item.first) == wanted.end();
  });
  for (const std::string& name : wanted) {
    if (held_.contains(name)) continue;
    at::Tensor value = whole_(name).detach();
    // An engine gives a view of everything that it gathered together.
    if (value.storage().nbytes() > value.nbytes())
      value = value.clone(at::MemoryFormat::Contiguous);
    held_[name] = value.reshape({-1});
  }
}

void SavedTensorReader::read(const SavedTensor& tensor, DType dtype, const Sink& sink) {
  const at::AutoGradMode grad_off(false);
  hold(tensor);
  if (!sink) return;
  if (tensor.adapter) {
    give_adapted(held_.at(tensor.runs.at(0).parameter), held_.at(tensor.adapter->a),
                 held_.at(tensor.adapter->b), tensor, dtype, sink);
    return;
  }
  for (const SavedRun& run : tensor.runs) {
    at::Tensor part = held_.at(run.parameter).narrow(0, run.first, run.count);
    if (tensor.transposed) part = part.view({tensor.shape[1], tensor.shape[0]}).t().reshape({-1});
    give(part, dtype, sink);
  }
}

}  // namespace floe::models
