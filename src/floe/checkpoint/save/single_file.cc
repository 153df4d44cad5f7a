#include "floe/checkpoint/save/single_file.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/save/commit_point.h"
#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using pickle::Value;

constexpr std::int64_t kCopyBytes = 8 << 20;
constexpr std::int64_t kCheckedBlock = 16 << 20;

// Copying tensors of a directory of torch.distributed.checkpoint into a file of torch.save, in
// blocks.
class TensorCopier {
 public:
  TensorCopier(const DcpDirectory& from, TorchFileWriter& to) : from_(from), to_(to) {}

  // The whole tensor; the result stands for it in the file's pickle.
  Value copy(const std::string& name) {
    const TensorInfo& info = from_.get(name);
    const pickle::Value value = to_.declare(name, info.dtype, info.shape);
    write(name, info, 0, info.numel());
    return value;
  }

  // A tensor of fp32 made of parts of others: `name_of` gives the tensor that stands for a
  // parameter, or nothing for zeros.
  Value copy(const std::string& name, const FileTensor& tensor,
             const std::function<std::string(const std::string&)>& name_of) {
    const pickle::Value value = to_.declare(name, DType::f32, tensor.shape);
    for (const FileRun& run : tensor.runs) {
      const std::string source = name_of(run.parameter);
      if (source.empty())
        write_zeros(name, run.count * size_of(DType::f32));
      else
        write_as_floats(name, from_.get(source), run.first, run.count);
    }
    return value;
  }

 private:
  void write(const std::string& name, const TensorInfo& info, std::int64_t first,
             std::int64_t count) {
    const std::int64_t most = kCopyBytes / size_of(info.dtype);
    for (std::int64_t at = 0; at < count; at += most) {
      const std::int64_t part = std::min(most, count - at);
      block_.resize(static_cast<std::size_t>(part * size_of(info.dtype)));
      from_.read(info, first + at, part, block_);
      to_.write(name, block_);
    }
  }

  void write_as_floats(const std::string& name, const TensorInfo& info, std::int64_t first,
                       std::int64_t count) {
    if (info.dtype == DType::f32) return write(name, info, first, count);
    const bool half = info.dtype == DType::f16;
    require<CheckpointError>(half || info.dtype == DType::bf16, "'", info.name, "' has type ",
                             name_of(info.dtype),
                             ", which a file in OpenFlamingo's layout cannot take; use "
                             "state_dict_type: sharded or full");
    std::vector<std::uint32_t> wide;  // the bits of floats
    for (std::int64_t at = 0; at < count; at += kCopyBytes) {
      const std::int64_t part = std::min(kCopyBytes, count - at);
      block_.resize(static_cast<std::size_t>(part * size_of(DType::bf16)));
      from_.read(info, first + at, part, block_);
      const auto* narrow = reinterpret_cast<const std::uint16_t*>(block_.data());
      wide.assign(narrow, narrow + part);
      for (std::uint32_t& bits : wide)
        bits = half ? c10::detail::fp16_ieee_to_fp32_bits(static_cast<std::uint16_t>(bits))
                    : bits << 16;
      to_.write(name, std::as_bytes(std::span(wide)));
    }
  }

  void write_zeros(const std::string& name, std::int64_t bytes) {
    for (; bytes > 0; bytes -= kCopyBytes) {
      block_.assign(static_cast<std::size_t>(std::min(bytes, kCopyBytes)), std::byte{});
      to_.write(name, block_);
    }
  }

  const DcpDirectory& from_;
  TorchFileWriter& to_;
  std::vector<std::byte> block_;
};

// Which tensors a set's optimizer keeps, by parameter.
using StateKeys = std::map<std::string, std::set<std::string>>;

StateKeys state_keys(const DcpDirectory& directory, const std::string& set) {
  StateKeys keys;
  for (const auto& [name, tensor] : directory.metadata().tensors)
    if (const auto place = state_place(directory.metadata().paths.at(name).items());
        place && place->set == set)
      keys[place->parameter].insert(place->key);
  return keys;
}

// The optimizer's state of one tensor of the file; what is frozen in it has zeros.
Value state_of(const FileTensor& tensor, const std::string& set, std::int64_t number,
               const StateKeys& keys, const DcpDirectory& directory, TensorCopier& copier) {
  pickle::Entries entries;
  const auto trained =
      std::find_if(tensor.runs.begin(), tensor.runs.end(),
                   [&](const FileRun& run) { return keys.contains(run.parameter); });
  if (trained == tensor.runs.end()) return pickle::dict({});
  for (const std::string& key : keys.at(trained->parameter)) {
    const auto in_directory = [&](const std::string& parameter) {
      return keys.contains(parameter)
                 ? str(join(optimizer_path(set), "."), ".state.", parameter, ".", key)
                 : std::string();
    };
    const std::string name = str("state/", set, set.empty() ? "" : "/", number, "/", key);
    const bool is_count = directory.get(in_directory(trained->parameter)).shape.empty();
    const FileTensor count{name, {}, {{trained->parameter, 0, 1}}, {}};
    entries.emplace_back(key, copier.copy(name, is_count ? count : tensor, in_directory));
  }
  return pickle::dict(std::move(entries));
}

// Tensors that are made of several parameters, under all their names.
std::set<std::string> tables_of_rows(const std::vector<FileTensor>& tensors) {
  std::set<std::string> names;
  for (const FileTensor& tensor : tensors)
    if (std::any_of(tensor.runs.begin(), tensor.runs.end(),
                    [&](const FileRun& run) { return run.parameter != tensor.name; })) {
      names.insert(tensor.name);
      names.insert(tensor.copies.begin(), tensor.copies.end());
    }
  return names;
}

// What torch's LambdaLR keeps.
Value scheduler_value(const SaveJob& job) {
  nlohmann::json state{{"last_epoch", job.header.step},
                       {"_step_count", job.header.step + 1},
                       {"verbose", false},
                       {"_get_lr_called_within_step", false},
                       {"_last_lr", nlohmann::json::array()},
                       {"lr_lambdas", nlohmann::json::array()}};
  for (const auto& group : job.optimizers.front().groups) {
    state["_last_lr"].push_back(group.lr);
    state["lr_lambdas"].push_back(nullptr);
  }
  const auto& shared = job.about.shared;
  if (shared.is_object() && shared.contains("schedule") && shared.at("schedule").is_object())
    state.update(shared.at("schedule"));
  return to_pickle(state);
}

Value epoch_of(const SaveJob& job) {
  const nlohmann::json& shared = job.about.shared;
  return shared.is_object() && shared.contains("epoch") ? to_pickle(shared.at("epoch")) : Value(0);
}

// {"lr": 1e-3, "betas": (0.9, 0.999), ..., "params": [...]}
Value group_value(const DcpDirectory& directory, const OptimizerGroups& optimizer,
                  std::size_t group, pickle::Items params) {
  pickle::Entries entries;
  for (const auto& [key, value] : optimizer.groups[group].settings)
    entries.emplace_back(key, directory.object(setting_name(optimizer.set, group, key)));
  entries.emplace_back("params", pickle::list(std::move(params)));
  return pickle::dict(std::move(entries));
}

// {"state": {...}, "param_groups": [...]}
Value optimizer_value(pickle::Entries state, pickle::Items groups) {
  return pickle::dict({{"state", pickle::dict(std::move(state))},
                       {"param_groups", pickle::list(std::move(groups))}});
}

// Adds what `value_of` makes of the optimizer under the key `one`, or with several sets {set:
// value} under the key `several`.
void add_optimizers(const SaveJob& job, const std::string& one, const std::string& several,
                    pickle::Entries& root,
                    const std::function<Value(const OptimizerGroups&)>& value_of) {
  pickle::Entries by_set;
  for (const OptimizerGroups& optimizer : job.optimizers)
    if (optimizer.set.empty())
      root.emplace_back(one, value_of(optimizer));
    else
      by_set.emplace_back(optimizer.set, value_of(optimizer));
  if (!by_set.empty()) root.emplace_back(several, pickle::dict(std::move(by_set)));
}

// Names of numbered_tensors(), one group after the other.
std::vector<std::string> numbered_names(const std::vector<FileTensor>& tensors,
                                        const std::vector<optim::ParameterGroup>& groups) {
  std::vector<std::string> names;
  for (const auto& group : numbered_tensors(tensors, groups))
    for (const FileTensor* tensor : group) names.push_back(tensor->name);
  return names;
}

// Note [checkpoint_N.pt]. Copies the tensors from the directory and returns the root of the file.
Value trainable_state(const DcpDirectory& directory, const SaveJob& job, TorchFileWriter& writer) {
  TensorCopier copier(directory, writer);
  pickle::Entries weights;
  for (const FileTensor& tensor : job.file_tensors) {
    const Value value = copier.copy("model/" + tensor.name, tensor,
                                    [](const std::string& p) { return "model." + p; });
    weights.emplace_back(tensor.name, value);
    for (const std::string& copy : tensor.copies) weights.emplace_back(copy, value);
  }
  pickle::Entries root{{"epoch", epoch_of(job)},
                       {"model_state_dict", pickle::ordered_dict(std::move(weights))}};
  add_optimizers(job, "optimizer_state_dict", "optimizer_state_dicts", root,
                 [&](const OptimizerGroups& optimizer) {
                   const StateKeys keys = state_keys(directory, optimizer.set);
                   pickle::Entries state;
                   pickle::Items groups;
                   std::int64_t number = 0;
                   const auto numbered = numbered_tensors(job.file_tensors, optimizer.groups);
                   for (std::size_t g = 0; g < numbered.size(); ++g) {
                     pickle::Items ids;
                     for (const FileTensor* tensor : numbered[g]) {
                       if (!keys.empty())
                         state.emplace_back(number, state_of(*tensor, optimizer.set, number, keys,
                                                             directory, copier));
                       ids.emplace_back(number++);
                     }
                     groups.push_back(group_value(directory, optimizer, g, std::move(ids)));
                   }
                   return optimizer_value(std::move(state), std::move(groups));
                 });
  if (job.optimizers.size() == 1 && job.optimizers.front().set.empty())
    root.emplace_back("lr_scheduler_state_dict", scheduler_value(job));
  // OpenFlamingo has no averages; under the model's own names they are for floe alone, which does
  // not need tables of which only rows train.
  pickle::Entries averages;
  const std::set<std::string> tables = tables_of_rows(job.file_tensors);
  for (const auto& [name, tensor] : directory.metadata().tensors)
    if (name.starts_with("ema.") && !tables.contains(name.substr(4)))
      averages.emplace_back(name.substr(4), copier.copy(name));
  if (!averages.empty())
    root.emplace_back("ema_state_dict", pickle::ordered_dict(std::move(averages)));
  return pickle::dict(std::move(root));
}

// Everything, likewise.
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

pickle::Value to_pickle(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::boolean: return value.get<bool>();
    case nlohmann::json::value_t::number_integer: return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_unsigned:
      // Python's integers have no end, the writer's do: 64-bit words go out as text.
      if (value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
        return std::to_string(value.get<std::uint64_t>());
      return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_float: return value.get<double>();
    case nlohmann::json::value_t::string: return bytes_to_text(value.get<std::string>());
    case nlohmann::json::value_t::array: {
      pickle::Items items;
      for (const auto& item : value) items.push_back(to_pickle(item));
      return pickle::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      pickle::Entries entries;
      for (const auto& [key, item] : value.items())
        entries.emplace_back(bytes_to_text(key), to_pickle(item));
      return pickle::dict(std::move(entries));
    }
    default: return {};
  }
}

nlohmann::json to_json(const pickle::Value& value) {
  using pickle::Kind;
  switch (value.kind()) {
    case Kind::boolean: return value.boolean();
    case Kind::integer: return value.integer();
    case Kind::real: return value.real();
    case Kind::text: return value.text();
    case Kind::list:
    case Kind::tuple: {
      auto items = nlohmann::json::array();
      for (const pickle::Value& item : value.items()) items.push_back(to_json(item));
      return items;
    }
    default: break;
  }
  if (!value.has_entries()) return nullptr;
  auto object = nlohmann::json::object();
  for (const auto& [key, item] : value.entries())
    if (key.is(Kind::text))
      object[key.text()] = to_json(item);
    else if (key.is(Kind::integer))
      object[std::to_string(key.integer())] = to_json(item);
  return object;
}

std::vector<std::vector<const FileTensor*>> numbered_tensors(
    const std::vector<FileTensor>& tensors, const std::vector<optim::ParameterGroup>& groups) {
  std::vector<std::vector<const FileTensor*>> numbered(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::set<std::string> names(groups[g].names.begin(), groups[g].names.end());
    for (const FileTensor& tensor : tensors)
      if (std::any_of(tensor.runs.begin(), tensor.runs.end(),
                      [&](const FileRun& run) { return names.contains(run.parameter); }))
        numbered[g].push_back(&tensor);
  }
  return numbered;
}

void make_single_file(const std::string& directory, const SaveJob& job, const std::string& target) {
  const std::string name = fs::path(target).filename().string();
  const std::string made = str(directory, "/", name);
  Manifest manifest = read_manifest(str(directory, "/", kManifestFile));
  manifest.ranks = RankStates(manifest.ranks.all());  // the directory does not stay
  {
    const DcpDirectory saved(directory);
    TorchFileWriter writer(made);
    writer.finish(job.about.layout == Layout::full ? whole_state(saved, job, writer)
                                                   : trainable_state(saved, job, writer));
  }
  if (job.about.layout == Layout::trainable)
    for (const OptimizerGroups& optimizer : job.optimizers)
      manifest.numbered[optimizer.set] = numbered_names(job.file_tensors, optimizer.groups);
  commit_point("file written");
  add_ranges(manifest, made, name);
  write_manifest(target + ".floe.json", manifest);
  commit_point("manifest of file written");
  replace(made, target);
}

}  // namespace floe::checkpoint
