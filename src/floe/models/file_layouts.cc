#include "floe/models/file_layouts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "floe/core/error.h"
#include "floe/models/lora.h"
#include "floe/models/part_names.h"

namespace floe::models {
namespace {

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
              ? merged_table(parameter, rows_name_, model_.decoder().embedding()->trained_rows(),
                             parameter.name)
              : as_it_is(parameter, parameter.name);
      if (const auto found = adapters_.find(parameter.name); found != adapters_.end())
        tensor.adapter = found->second;
      tensor.copies = parameter.other_names;
      f(parameter, std::move(tensor));
    }
  }
  bool is_table(const nn::NamedParameter& parameter) const {
    return parameter.tensor.is_same(model_.decoder().embedding()->weight());
  }

 private:
  LanguageModel& model_;
  bool merges_;
  std::vector<nn::NamedParameter> parameters_;
  std::string rows_name_;
  std::map<std::string, SavedAdapter> adapters_;  // by weight
};

// "….layers.3.decoder_layer.X" → "lang_encoder.old_decoder_blocks.3.X", and the gates' likewise: where
// OpenFlamingo's language model has these modules a second time.
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
