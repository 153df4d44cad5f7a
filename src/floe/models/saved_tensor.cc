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

// Flat; of what is held, or read now.
at::Tensor SavedTensorReader::elements(const std::string& parameter, std::int64_t first,
                                       std::int64_t count) const {
  if (whole_) return held_.at(parameter).narrow(0, first, count);
  const TensorInfo& info = source_->get(parameter);
  at::Tensor values = at::empty({count}, at::TensorOptions().dtype(nn::torch_dtype(info.dtype)));
  nn::read_elements(*source_, info, first, values);
  return values;
}

// weight + scale · B A, some rows at a time.
void SavedTensorReader::give_adapted(const SavedTensor& tensor, DType dtype,
                                     const Sink& sink) const {
  const std::int64_t out = tensor.shape[0], in = tensor.shape[1];
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    return elements(name, 0, rows * columns).to(at::kFloat).view({rows, columns});
  };
  const std::int64_t rank = tensor.adapter->rank;
  const at::Tensor a = matrix(tensor.adapter->a, rank, in),
                   b = matrix(tensor.adapter->b, out, rank);
  const std::string& weight = tensor.runs.at(0).parameter;
  const std::int64_t step = std::max<std::int64_t>(1, kStep / std::max<std::int64_t>(1, in));
  for (std::int64_t row = 0; row < out; row += step) {
    const std::int64_t rows = std::min(step, out - row);
    const at::Tensor base = elements(weight, row * in, rows * in).to(at::kFloat).view({rows, in});
    const at::Tensor merged = base + b.narrow(0, row, rows).mm(a) * tensor.adapter->scale;
    give(merged.view({-1}), dtype, sink);
  }
}

void SavedTensorReader::read(const SavedTensor& tensor, DType dtype, const Sink& sink) {
  const at::AutoGradMode grad_off(false);
  if (whole_) hold(tensor);
  if (!sink) return;
  if (tensor.adapter) return give_adapted(tensor, dtype, sink);
  for (const SavedRun& run : tensor.runs) {
    if (tensor.transposed) {
      const at::Tensor part = elements(run.parameter, run.first, run.count);
      give(part.view({tensor.shape[1], tensor.shape[0]}).t().reshape({-1}), dtype, sink);
      continue;
    }
    for (std::int64_t done = 0; done < run.count; done += kStep)
      give(elements(run.parameter, run.first + done, std::min(kStep, run.count - done)), dtype,
           sink);
  }
}

}  // namespace floe::models
