#include "floe/cli/export_weights.h"

#include <filesystem>

#include "floe/checkpoint/manifest.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/json_text.h"
#include "floe/io/open_tensors.h"
#include "floe/io/renamed_source.h"
#include "floe/io/training_state.h"
#include "floe/models/save.h"
#include "floe/models/tensor_writers.h"
#include "floe/models/unwrapped_source.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAverages = "ema.";  // the part of a checkpoint of floe

// A source without these prefixes, each taken off names that have it.
std::shared_ptr<const TensorSource> stripped(std::shared_ptr<const TensorSource> source,
                                             const ExportRequest& request) {
  Renames renames;
  for (const std::string& original : source->names()) {
    std::string name = original;
    for (const std::string& prefix : request.strip_prefixes)
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    const auto [known, is_new] = renames.emplace(name, original);
    require<ConfigError>(is_new && !name.empty(), "--strip-prefix leaves ", quoted(known->second),
                         " and ", quoted(original), " with the name ", quoted(name));
  }
  return std::make_shared<RenamedSource>(std::move(source), renames);
}

ExportResult write(const std::shared_ptr<const TensorSource>& source, const std::string& place,
                   const ExportRequest& request) {
  ExportResult result;
  std::vector<models::SavedTensor> tensors;
  for (const std::string& name : source->names()) {
    const TensorInfo& info = source->get(name);
    models::SavedTensor tensor{.name = name, .shape = info.shape};
    tensor.runs.push_back({name, 0, info.numel()});
    tensors.push_back(std::move(tensor));
  }
  require<CheckpointError>(!tensors.empty(), "'", request.checkpoint, "' has no tensors to export");
  const models::SaveOptions options{
      .dtype = request.dtype, .source = source.get(), .max_shard_bytes = request.max_shard_bytes};
  for (const models::SavedTensor& tensor : tensors)
    result.bytes += tensor.numel() * size_of(models::saved_dtype(tensor, options));
  result.num_tensors = static_cast<std::int64_t>(tensors.size());
  if (!request.to_file())
    models::write_shards(tensors, place, {}, options);
  else if (place.ends_with(".safetensors"))
    models::write_safetensors(tensors, place, {}, options);
  else
    models::write_torch_file(tensors, place, {}, options);
  return result;
}

// What trained once and was frozen when the checkpoint was saved has no average in it.
void warn_of_missing_averages(const std::string& checkpoint) {
  const std::string file = checkpoint::manifest_path(checkpoint);
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  const std::set<std::string> frozen = checkpoint::read_manifest(file).frozen;
  if (!frozen.empty())
    log::warn("'", checkpoint, "' has no average of ", frozen.size(),
              frozen.size() == 1 ? " parameter that" : " parameters that",
              " trained once, such as ", *frozen.begin(),
              ": frozen when it was saved, so that the weights are written as they are");
}

}  // namespace

bool ExportRequest::to_file() const {
  return out.ends_with(".safetensors") || out.ends_with(".pt") || out.ends_with(".pth");
}

std::shared_ptr<const TensorSource> exported_weights(const ExportRequest& request) {
  const std::shared_ptr<const TensorSource> source = open_tensors(request.checkpoint);
  auto weights = models::unwrapped(source, request.checkpoint);
  if (!request.ema) return weights;
  Renames averages = names_below(*source, kAverages);
  if (averages.empty()) averages = names_below(*source, "ema_state_dict.");  // of a file
  require<CheckpointError>(
      !averages.empty(), "'", request.checkpoint,
      "' has no averages of weights (ema): train with train.ema.decay, or leave "
      "out --ema");
  warn_of_missing_averages(request.checkpoint);
  return std::make_shared<MergedSource>(std::vector<std::shared_ptr<const TensorSource>>{
      std::make_shared<RenamedSource>(source, averages), weights});
}

ExportResult export_raw(const ExportRequest& request, const std::string& place) {
  ExportResult result = write(open_tensors(request.checkpoint), place, request);
  result.what = "every tensor under its flat name";
  return result;
}

ExportResult export_weights(const ExportRequest& request, const std::string& place) {
  ExportResult result = write(stripped(exported_weights(request), request), place, request);
  result.what = "the weights";
  if (request.base.empty()) return result;
  fs::copy_file(request.base + "/config.json", place + "/config.json");
  models::copy_companions(request.base, place);
  return result;
}

}  // namespace floe::cli
