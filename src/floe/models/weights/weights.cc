#include "floe/models/weights/weights.h"

#include <algorithm>
#include <set>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/weights/assembled_source.h"
#include "floe/models/weights/file_layouts.h"
#include "floe/models/weights/weight_defects.h"

namespace floe::models {
namespace {

using Shape = std::vector<std::int64_t>;

// The layers in whose names this part stands: "….layers.3.gated_cross_attn_layer.…" has 3.
std::set<std::int64_t> layers_with(const TensorSource& source, const std::string& part) {
  std::set<std::int64_t> layers;
  for (const std::string& name : source.names()) {
    const auto at = name.find(part);
    if (at == std::string::npos || at == 0) continue;
    const auto dot = name.rfind('.', at - 1);
    const std::string number = name.substr(dot + 1, at - dot - 1);
    if (!number.empty() && number.size() < 6 &&
        number.find_first_not_of("0123456789") == std::string::npos)
      layers.insert(std::stoll(number));
  }
  return layers;
}

// One of the places where weights come from, and which of its tensors have found theirs.
class Place {
 public:
  Place(std::shared_ptr<const TensorSource> source, std::string path)
      : source_(std::move(source)), path_(std::move(path)) {}

  explicit operator bool() const { return source_ != nullptr; }
  const std::shared_ptr<const TensorSource>& source() const { return source_; }
  const std::string& path() const { return path_; }

  // The first of the names that is there. All of them count as known from now on.
  const TensorInfo* find(const std::vector<std::string>& names) {
    if (!source_) return nullptr;
    const TensorInfo* first = nullptr;
    for (const std::string& name : names) {
      known_.insert(name);
      if (!first) first = source_->find(name);
    }
    return first;
  }
  // Tensors below the prefix that nobody asked for and no pattern excuses.
  std::vector<std::string> surplus(const std::string& prefix,
                                   const std::vector<std::string>& excused) const {
    std::vector<std::string> names;
    if (!source_) return names;
    for (const std::string& name : source_->names())
      if (name.starts_with(prefix) && !known_.contains(name) && !glob_match_any(excused, name))
        names.push_back(name);
    return names;
  }

 private:
  std::shared_ptr<const TensorSource> source_;
  std::string path_;
  std::set<std::string> known_;
};

// Finds every parameter's pieces and remembers what went wrong.
class Assembly {
 public:
  Assembly(LanguageModel& model, const WeightFiles& files, std::uint64_t seed)
      : model_(model),
        files_(files),
        weights_(files.weights, files.weights_path),
        lm_(files.lm, files.lm_path),
        vision_(files.vision ? files.vision->source : nullptr,
                files.vision ? files.vision->path : ""),
        adapters_(files.adapters, files.adapters_path),
        result_(std::make_shared<AssembledSource>(seed)) {}

  std::shared_ptr<const AssembledSource> run() {
    for (const nn::NamedParameter& parameter : nn::named_parameters(model_.module()))
      place(parameter);
    find_surplus();
    require<DataError>(defects_.empty(), "the weights do not fit the model: ", defects_.text(),
                       likely_cause());
    return result_;
  }

 private:
  const ModelInfo& info() const { return model_.info(); }

  void place(const nn::NamedParameter& parameter) {
    const Shape shape = parameter.tensor.sizes().vec();
    if (is_rows(parameter.name)) return place_rows(parameter, shape);
    if (const TensorInfo* found = weights_.find(flamingo_names(parameter)))
      take(parameter, weights_, found);
    else if (is_adapter(parameter.name))
      take_or_miss(parameter, adapters_, {parameter.name});
    else if (is_flamingo_own(parameter.name))
      take_or_miss(parameter, weights_, {parameter.name});
    else if (is_vision(parameter.name))
      place_vision(parameter.name, shape);
    else
      take_or_miss(parameter, lm_, hf_names(parameter));
    // What `weights` has may stand in the others as well.
    if (is_adapter(parameter.name))
      adapters_.find({parameter.name});
    else if (is_vision(parameter.name))
      vision_.find(vision_names(parameter.name).names);
    else
      lm_.find(hf_names(parameter));
  }

  // OpenFlamingo's and Hugging Face's.
  static std::vector<std::string> flamingo_names(const nn::NamedParameter& parameter) {
    std::vector<std::string> names{parameter.name, hf_name(parameter.name)};
    for (const std::string& name : parameter.other_names)
      for (const std::string& known : {name, hf_name(name)}) names.push_back(known);
    return names;
  }

  // Whole names, those in a file of the bare model, and those in older files.
  std::vector<std::string> hf_names(const nn::NamedParameter& parameter) const {
    std::vector<std::string> names{hf_name(parameter.name)};
    for (const std::string& name : parameter.other_names) names.push_back(hf_name(name));
    names.push_back(names[0].substr(names[0].find('.') + 1));
    const std::vector<std::string> today = names;
    for (const auto& [ending, older] : info().older_endings)
      for (const std::string& name : today)
        if (name.ends_with(ending))
          names.push_back(name.substr(0, name.size() - ending.size()) + older);
    return names;
  }

  VisionTensor vision_names(const std::string& name) const {
    if (!files_.vision) return {};
    return vision_tensor(files_.vision->names, files_.vision->prefix,
                         name.substr(kVisionPart.size()));
  }

  void take_or_miss(const nn::NamedParameter& parameter, Place& from,
                    const std::vector<std::string>& names) {
    if (!from) return;  // new
    if (const TensorInfo* found = from.find(names))
      take(parameter, from, found);
    else
      defects_.missing(names[0], parameter.tensor.sizes().vec(), from.path());
  }

  void take(const nn::NamedParameter& parameter, const Place& from, const TensorInfo* found) {
    const Shape shape = parameter.tensor.sizes().vec();
    const bool table = hf_name(parameter.name) == info().parts.embed + ".weight";
    // Only a Flamingo's vocabulary follows the tokenizer; a model alone keeps that of its files.
    const bool resizable = info().kind == "flamingo" &&
                           (table || hf_name(parameter.name) == info().parts.head + ".weight");
    const bool other_rows = resizable && found->shape.size() == 2 && shape[1] == found->shape[1];
    if (found->shape != shape && !other_rows)
      return defects_.misshapen(found->name, found->shape, shape, from.path());
    if (!floating(*found, from.path())) return;
    result_->add(parameter.name, shape, found->dtype,
                 table_pieces(parameter.name, from.source(), found, 0, shape));
    if (table) table_ = {parameter.name, from.source(), found};
  }

  // Rows [first_row, first_row + shape[0]) of a table that may be shorter in its file.
  std::vector<WeightPiece> table_pieces(const std::string& name,
                                        const std::shared_ptr<const TensorSource>& source,
                                        const TensorInfo* found, std::int64_t first_row,
                                        const Shape& shape) const {
    std::int64_t width = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) width *= shape[d];
    const std::int64_t rows = shape.empty() ? 1 : shape[0];
    const std::int64_t there = found->shape.empty() ? 1 : found->shape[0];
    const std::int64_t kept = std::clamp<std::int64_t>(there - first_row, 0, rows);
    std::vector<WeightPiece> pieces;
    if (kept > 0)
      pieces.push_back(
          {.source = source, .tensor = found, .first = first_row * width, .count = kept * width});
    if (kept < rows)
      pieces.push_back({.init = nn::Init::normal(info().init_range),
                        .seed_name = name,
                        .first = (first_row + kept) * width,
                        .count = (rows - kept) * width});
    return pieces;
  }

  // A checkpoint may have them apart, as the model has; else they are rows of a file's table.
  void place_rows(const nn::NamedParameter& parameter, const Shape& shape) {
    if (const TensorInfo* apart = weights_.find(flamingo_names(parameter)))
      return take(parameter, weights_, apart);
    if (!table_.found) return;  // a new model, or the table is reported already
    std::vector<WeightPiece> pieces;
    for (const std::int64_t row : info().trained_rows)
      for (WeightPiece& piece :
           table_pieces(table_.name, table_.source, table_.found, row, {1, shape[1]}))
        pieces.push_back(std::move(piece));
    result_->add(parameter.name, shape, table_.found->dtype, std::move(pieces));
  }

  void place_vision(const std::string& name, const Shape& shape) {
    if (!vision_) return;
    const VisionTensor wanted = vision_names(name);
    Shape part = shape;  // of each tensor in the file
    if (wanted.transposed) std::swap(part[0], part[1]);
    part[0] /= static_cast<std::int64_t>(wanted.names.size());
    std::vector<WeightPiece> pieces;
    for (const std::string& theirs : wanted.names) {
      const TensorInfo* found = vision_.find({theirs});
      if (!found)
        defects_.missing(theirs, part, vision_.path());
      else if (found->shape != part)
        defects_.misshapen(theirs, found->shape, part, vision_.path());
      else if (floating(*found, vision_.path()))
        pieces.push_back({.source = vision_.source(), .tensor = found, .count = found->numel()});
    }
    if (pieces.size() != wanted.names.size()) return;
    if (wanted.transposed)
      return result_->add_transposed(name, vision_.source(), *pieces[0].tensor);
    for (const WeightPiece& piece : pieces)
      if (piece.tensor->dtype != pieces[0].tensor->dtype) {
        defects_.other(wanted.names[0],
                       str("'", join(wanted.names, "', '"), "' in ", vision_.path(),
                           " have different types; convert them to one"));
        return;
      }
    const DType dtype = pieces[0].tensor->dtype;
    result_->add(name, shape, dtype, std::move(pieces));
  }

  // Another size of the model than the file is of, where the names tell it.
  std::string likely_cause() const {
    const auto* flamingo = dynamic_cast<const Flamingo*>(&model_);
    if (!flamingo || !weights_) return "";
    const auto gates = layers_with(*weights_.source(), ".gated_cross_attn_layer.");
    if (!gates.empty()) {
      const std::int64_t every = *gates.begin() + 1, ours = flamingo->spec().cross_attention_every;
      if (every != ours)
        return str("; the first gated cross-attention in ", weights_.path(), " is that of layer ",
                   *gates.begin(), ": set model.cross_attn_every_n_layers to ", every,
                   " instead of ", ours);
    }
    std::int64_t depth = 0;
    constexpr std::string_view kLayers = "perceiver.layers.";
    for (const std::string& name : weights_.source()->names())
      if (name.starts_with(kLayers)) {  // then digits and a dot
        const char* number = name.c_str() + kLayers.size();
        depth = std::max<std::int64_t>(depth, std::strtoll(number, nullptr, 10) + 1);
      }
    const std::int64_t ours = flamingo->spec().perceiver.depth;
    if (depth > 0 && depth != ours)
      return str("; the resampler in ", weights_.path(), " has ", depth,
                 " layers: set model.perceiver.depth to ", depth, " instead of ", ours);
    return "";
  }
  // Numbers of a quantised model would be taken for the weights themselves.
  bool floating(const TensorInfo& found, const std::string& path) {
    const bool fits = found.dtype == DType::f64 || found.dtype == DType::f32 ||
                      found.dtype == DType::f16 || found.dtype == DType::bf16;
    if (!fits)
      defects_.other(found.name,
                     str("'", found.name, "' in ", path, " has type ", name_of(found.dtype),
                         ", but weights must be fp64, fp32, fp16 or bf16"));
    return fits;
  }

  void find_surplus() {
    std::vector<std::string> excused = info().ignored;
    // A tied head may be written out as well.
    if (info().tied) excused.push_back("*" + info().parts.head + ".weight");
    report_surplus(lm_, "", excused);
    // A whole state dict has some modules under two names, buffers, and perhaps a projection of the
    // image tower that the tower's own files do not have.
    for (const char* pattern :
         {"lang_encoder.old_decoder_blocks.*", "lang_encoder.gated_cross_attn_layers.*",
          "*.rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias"})
      excused.emplace_back(pattern);
    if (files_.vision && files_.vision->spec.embed_dim == 0)
      excused.emplace_back("vision_encoder.proj");
    report_surplus(weights_, "", excused);
    if (vision_) report_surplus(vision_, files_.vision->prefix, {"*.position_ids"});
    report_surplus(adapters_, "", {});
  }

  void report_surplus(const Place& place, const std::string& prefix,
                      const std::vector<std::string>& excused) {
    for (const std::string& name : place.surplus(prefix, excused))
      defects_.surplus(name, place.source()->get(name).shape, place.path());
  }

  LanguageModel& model_;
  const WeightFiles& files_;
  Place weights_, lm_, vision_, adapters_;
  std::shared_ptr<AssembledSource> result_;
  WeightDefects defects_;
  struct {
    std::string name;
    std::shared_ptr<const TensorSource> source;
    const TensorInfo* found = nullptr;
  } table_;  // the input embedding's, once it is found
};

}  // namespace

std::shared_ptr<const AssembledSource> assemble_weights(LanguageModel& model,
                                                        const WeightFiles& files,
                                                        std::uint64_t seed) {
  return Assembly(model, files, seed).run();
}

std::shared_ptr<const TensorSource> open_trained_part(const std::string& path) {
  return unwrapped(open_tensors(path), path);
}

}  // namespace floe::models
