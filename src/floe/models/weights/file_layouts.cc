#include "floe/models/weights/file_layouts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "floe/core/error.h"
#include "floe/models/lora/lora.h"
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

SavedTensor as_it_is(const nn::NamedParameter& parameter, std::string name) {
  SavedTensor tensor{.name = std::move(name), .shape = parameter.tensor.sizes().vec()};
  tensor.runs.push_back({parameter.name, 0, parameter.tensor.numel()});
  return tensor;
}

// The table with its trained rows: runs of the one and rows of the other.
SavedTensor merged_table(const nn::NamedParameter& table, const std::string& rows_name,
                         const std::vector<std::int64_t>& trained_rows, std::string name) {
  std::vector<std::pair<std::int64_t, std::int64_t>> by_place;  // row of the table, row of `rows`
  for (std::size_t i = 0; i < trained_rows.size(); ++i)
    by_place.emplace_back(trained_rows[i], static_cast<std::int64_t>(i));
  std::sort(by_place.begin(), by_place.end());
  SavedTensor tensor{.name = std::move(name), .shape = table.tensor.sizes().vec()};
  const std::int64_t width = tensor.shape[1];
  std::int64_t next = 0;
  const auto keep_until = [&](std::int64_t row) {
    if (row > next) tensor.runs.push_back({table.name, next * width, (row - next) * width});
    next = row;
  };
  for (const auto& [place, row] : by_place) {
    keep_until(place);
    tensor.runs.push_back({rows_name, row * width, width});
    next = place + 1;
  }
  keep_until(tensor.shape[0]);
  return tensor;
}

// All parameters as tensors of files, except trained rows, which are part of their table.
class Layout {
 public:
  Layout(LanguageModel& model, bool merge_adapters) : model_(model), merges_(merge_adapters) {
    for (nn::NamedParameter& parameter : nn::named_parameters(model.module())) {
      if (is_rows(parameter.name)) rows_name_ = parameter.name;
      parameters_.push_back(std::move(parameter));
    }
    if (merges_)
      for (const AdaptedLinear& adapted : adapted_linears(model.module()))
        adapters_[adapted.path + ".weight"] = {adapted.path + ".lora_A.weight",
                                               adapted.path + ".lora_B.weight",
                                               adapted.options.rank, adapted.options.scale()};
  }

  // `f` gets every parameter and its tensor under floe's name.
  template <class F>
  void each(F&& f) const {
    for (const nn::NamedParameter& parameter : parameters_) {
      if (is_rows(parameter.name) || (merges_ && is_adapter(parameter.name))) continue;
      const bool table = is_table(parameter);
      SavedTensor tensor =
          table && !rows_name_.empty()
              ? merged_table(parameter, rows_name_, model_.info().trained_rows, parameter.name)
              : as_it_is(parameter, parameter.name);
      if (const auto found = adapters_.find(parameter.name); found != adapters_.end())
        tensor.adapter = found->second;
      tensor.copies = parameter.other_names;
      f(parameter, std::move(tensor));
    }
  }
  bool is_table(const nn::NamedParameter& parameter) const {
    return hf_name(parameter.name) == model_.info().parts.embed + ".weight";
  }

 private:
  LanguageModel& model_;
  bool merges_;
  std::vector<nn::NamedParameter> parameters_;
  std::string rows_name_;
  std::map<std::string, SavedAdapter> adapters_;  // by weight
};

// "….layers.3.decoder_layer.X" → "lang_encoder.old_decoder_blocks.3.X", and the gates' likewise:
// where OpenFlamingo's language model has these modules a second time.
std::vector<std::string> second_names(const std::string& name) {
  const std::pair<std::string, std::string> kinds[] = {
      {".decoder_layer.", "old_decoder_blocks."},
      {".gated_cross_attn_layer.", "gated_cross_attn_layers."},
  };
  for (const auto& [mark, list] : kinds)
    if (const auto at = name.find(mark); at != std::string::npos) {
      const auto index = name.rfind('.', at - 1) + 1;
      return {str(kLanguagePart, list, name.substr(index, at - index), ".",
                  name.substr(at + mark.size()))};
    }
  return {};
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

std::vector<SavedTensor> language_model_layout(LanguageModel& model) {
  std::vector<SavedTensor> tensors;
  Layout(model, true).each([&](const nn::NamedParameter& parameter, SavedTensor tensor) {
    if (is_vision(parameter.name) || is_flamingo_own(parameter.name)) return;
    tensor.name = hf_name(tensor.name);
    tensor.copies.clear();
    tensors.push_back(std::move(tensor));
  });
  return tensors;
}

std::vector<SavedTensor> trained_part_layout(
    LanguageModel& model, const std::function<bool(const nn::NamedParameter&)>& trains) {
  std::vector<SavedTensor> tensors;
  const Layout layout(model, false);
  layout.each([&](const nn::NamedParameter& parameter, SavedTensor tensor) {
    const bool trained = trains ? trains(parameter) : parameter.tensor.requires_grad();
    const bool embeds =
        layout.is_table(parameter) ||
        (!is_vision(parameter.name) && parameter.name.find("embed") != std::string::npos);
    if (!trained && !embeds) return;
    tensors.push_back(std::move(tensor));
  });
  return tensors;
}

std::vector<SavedTensor> flamingo_layout(LanguageModel& model) {
  std::vector<SavedTensor> tensors;
  Layout(model, true).each([&](const nn::NamedParameter& parameter, SavedTensor tensor) {
    tensor.second_names = second_names(parameter.name);
    tensors.push_back(std::move(tensor));
  });
  return tensors;
}

std::vector<SavedTensor> vision_layout(LanguageModel& model, VisionNames names) {
  std::vector<SavedTensor> tensors;
  Layout(model, true).each([&](const nn::NamedParameter& parameter, const SavedTensor& whole) {
    if (!is_vision(parameter.name)) return;
    const VisionTensor wanted =
        vision_tensor(names, usual_prefix(names), parameter.name.substr(kVisionPart.size()));
    const auto parts = static_cast<std::int64_t>(wanted.names.size());
    const std::int64_t count = whole.numel() / parts;
    for (std::int64_t i = 0; i < parts; ++i) {
      SavedTensor tensor{.name = wanted.names[static_cast<std::size_t>(i)], .shape = whole.shape};
      if (parts > 1) tensor.shape[0] /= parts;
      if (wanted.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
      tensor.transposed = wanted.transposed;
      tensor.runs.push_back({parameter.name, i * count, count});
      tensors.push_back(std::move(tensor));
    }
  });
  require<ConfigError>(!tensors.empty(), "the model has no image tower that could be saved");
  return tensors;
}

}  // namespace floe::models
