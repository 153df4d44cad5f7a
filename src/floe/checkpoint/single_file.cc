#include "floe/checkpoint/single_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/stop_point.h"
#include "floe/checkpoint/tensor_copier.h"
#include "floe/checkpoint/trainable_file.h"
#include "floe/core/error.h"
#include "floe/io/crc32.h"
#include "floe/io/dcp_directory.h"
#include "floe/io/file.h"
#include "floe/io/torch_file_writer.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using pickle::Value;

constexpr std::int64_t kCheckedBlock = 16 << 20;

Value whole_state(const DcpDirectory& directory, const SaveJob& job, TorchFileWriter& writer) {
  TensorCopier copier(directory, writer);
  std::map<std::string, std::map<std::string, pickle::Entries>> states;  // by set and parameter
  std::map<std::vector<std::pair<std::size_t, std::int64_t>>, Value> copied;  // by place
  pickle::Entries weights, averages;
  for (const auto& [name, tensor] : directory.metadata().tensors) {
    const pickle::Items& path = directory.metadata().paths.at(name).items();
    // Names of the same bytes, as tied weights have them, are one tensor in the file too.
    const bool has_bytes = !tensor.chunks.empty();
    std::vector<std::pair<std::size_t, std::int64_t>> place;
    for (const DcpChunk& chunk : tensor.chunks)
      place.emplace_back(chunk.place.file, chunk.place.offset);
    const auto known = copied.find(place);
    const Value value = has_bytes && known != copied.end() ? known->second : copier.copy(name);
    if (has_bytes) copied.emplace(place, value);
    if (path[0].text() == "model")
      weights.emplace_back(path[1], value);
    else if (path[0].text() == "ema")
      averages.emplace_back(path[1], value);
    else if (const auto state = state_place(path))
      states[state->set][state->parameter].emplace_back(state->key, value);
  }
  pickle::Entries root{{"epoch", epoch_of(job)},
                       {"global_step", job.header.step},
                       {"state_dict", pickle::ordered_dict(std::move(weights))}};
  add_optimizers(job, "optimizer", "optimizers", root, [&](const OptimizerGroups& optimizer) {
    pickle::Entries state;
    for (auto& [name, entries] : states[optimizer.set])
      state.emplace_back(name, pickle::dict(std::move(entries)));
    pickle::Items groups;
    for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
      pickle::Items names;
      for (const std::string& name : optimizer.groups[g].names) names.emplace_back(name);
      groups.push_back(group_value(directory, optimizer, g, std::move(names)));
    }
    return optimizer_value(std::move(state), std::move(groups));
  });
  if (!averages.empty()) root.emplace_back("ema", pickle::ordered_dict(std::move(averages)));
  return pickle::dict(std::move(root));
}

// The file's ranges, each with a checksum.
void add_ranges(Manifest& manifest, const std::string& path, const std::string& name) {
  const File file(path);
  manifest.file_bytes = {{name, file.size()}};
  manifest.ranges.clear();
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < file.size(); at += kCheckedBlock) {
    block.resize(static_cast<std::size_t>(std::min(kCheckedBlock, file.size() - at)));
    file.read_at(at, block);
    manifest.ranges.push_back(
        {name, at, static_cast<std::int64_t>(block.size()), crc32(block), ""});
  }
}

}  // namespace

void make_single_file(const std::string& directory, const SaveJob& job, const std::string& target) {
  const std::string name = fs::path(target).filename().string();
  const std::string made = str(directory, "/", name);
  Manifest manifest = read_manifest(str(directory, "/", kManifestFile));
  {
    const DcpDirectory saved(directory);
    TorchFileWriter writer(made);
    writer.finish(job.about.layout == Layout::full ? whole_state(saved, job, writer)
                                                   : trainable_state(saved, job, writer));
  }
  if (job.about.layout == Layout::trainable)
    for (const OptimizerGroups& optimizer : job.optimizers)
      manifest.numbered[optimizer.set] = numbered_names(job.file_tensors, optimizer.groups);
  stop_point("file written");
  add_ranges(manifest, made, name);
  write_manifest(target + ".floe.json", manifest);
  stop_point("manifest of file written");
  replace(made, target);
}

}  // namespace floe::checkpoint
