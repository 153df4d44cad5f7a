#include "floe/train/foreign_names.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "floe/models/assembled_source.h"
#include "floe/models/file_layouts.h"

namespace floe::train {
namespace {

using checkpoint::FileTensor;
using SourcePtr = std::shared_ptr<const TensorSource>;

// Where the elements of a parameter from `first` on lie in a file.
struct Part {
  std::int64_t first = 0;
  models::WeightPiece piece;
};

std::map<std::string, std::vector<Part>> parts_in(const SourcePtr& file,
                                                  const std::vector<FileTensor>& tensors) {
  std::map<std::string, std::vector<Part>> parts;
  for (const FileTensor& tensor : tensors) {
    const TensorInfo* info = file->find(tensor.name);
    if (!info) continue;
    std::int64_t at = 0;
    for (const checkpoint::FileRun& run : tensor.runs) {
      models::WeightPiece piece{.source = file, .tensor = info, .first = at, .count = run.count};
      parts[run.parameter].push_back({run.first, std::move(piece)});
      at += run.count;
    }
  }
  for (auto& [name, pieces] : parts)
    std::sort(pieces.begin(), pieces.end(),
              [](const Part& a, const Part& b) { return a.first < b.first; });
  return parts;
}

// A file under OpenFlamingo's names, or already under the model's, as a source under the model's.
SourcePtr to_model_names(models::LanguageModel& model, const std::vector<FileTensor>& tensors,
                         const SourcePtr& file) {
  auto source = std::make_shared<models::AssembledSource>(0);
  auto parts = parts_in(file, tensors);
  for (const auto& parameter : model.module().named_parameters()) {
    const std::string& name = parameter.key();
    const std::vector<std::int64_t> shape = parameter.value().sizes().vec();
    if (const TensorInfo* own = file->find(name); own && own->shape == shape)
      parts[name] = {{0, {.source = file, .tensor = own, .count = own->numel()}}};
    const auto found = parts.find(name);
    if (found == parts.end()) continue;
    std::vector<models::WeightPiece> pieces;
    std::int64_t covered = 0;
    for (const Part& part : found->second) {
      if (part.first != covered) break;
      covered += part.piece.count;
      pieces.push_back(part.piece);
    }
    // Rows that are shared out over two parameters may be there for one of them only.
    if (covered != parameter.value().numel() || pieces.empty()) continue;
    const DType dtype = pieces.front().tensor->dtype;
    source->add(name, shape, dtype, std::move(pieces));
  }
  return source;
}

}  // namespace

checkpoint::ForeignNames foreign_names(models::LanguageModel& model) {
  const auto all = [](const nn::NamedParameter&) { return true; };
  const auto none = [](const nn::NamedParameter&) { return false; };
  checkpoint::ForeignNames names;
  for (const models::SavedTensor& saved : models::trained_part_layout(model, all)) {
    FileTensor tensor{saved.name, saved.shape, {}, saved.copies};
    for (const models::SavedRun& run : saved.runs)
      tensor.runs.push_back({run.parameter, run.first, run.count});
    names.tensors.push_back(std::move(tensor));
  }
  for (const models::SavedTensor& saved : models::trained_part_layout(model, none))
    for (const models::SavedRun& run : saved.runs) names.always.insert(run.parameter);
  names.to_model = [&model, tensors = names.tensors](SourcePtr file) {
    return to_model_names(model, tensors, file);
  };
  return names;
}

}  // namespace floe::train
