#include "floe/cli/commands/inspect_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/checkpoint/save/single_file.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/weights/weight_defects.h"
#include "floe/observe/report/logged_run.h"
#include "floe/schema/codec.h"

namespace floe::cli {
namespace {

using nlohmann::ordered_json;

void add_manifest(const checkpoint::Manifest& manifest, ordered_json& facts) {
  facts["written_by"] = "floe";
  facts["step"] = manifest.step;
  facts["world_size"] = manifest.world_size;
  facts["layout"] = config::enum_name(manifest.layout);
  facts["content"] = config::enum_name(manifest.content);
  facts["emergency"] = manifest.emergency;
  for (const auto& set : manifest.sets) {
    if (set.active) facts["phase"] = set.name;
    facts["sets"][set.name] = {{"trains", set.active}, {"has_state", set.has_state}};
  }
  for (const auto& base : manifest.bases) facts["frozen_base"].push_back(base.path);
  if (!manifest.metrics.empty()) facts["metrics"] = manifest.metrics;
}

// As trainers keep them.
void add_counters(const TensorSource& source, ordered_json& facts) {
  for (const char* key : {"epoch", "global_step", "step"})
    if (const pickle::Value value = state_value(source, key); value.is(pickle::Kind::integer))
      facts[std::string(key) == "global_step" ? "step" : key] = value.integer();
}

// The number of ranks whose files are there: __R_N.distcp.
std::size_t ranks_in(const std::vector<std::string>& files) {
  std::set<std::string> ranks;
  for (const std::string& file : files)
    if (file.starts_with("__")) ranks.insert(file.substr(2, file.find('_', 2) - 2));
  return ranks.size();
}

void add_directory(const DcpDirectory& directory, ordered_json& facts) {
  const DcpMetadata& metadata = directory.metadata();
  facts["format"] = "torch.distributed.checkpoint";
  if (!facts.contains("world_size")) facts["ranks_with_files"] = ranks_in(metadata.files);
  std::map<std::string, std::int64_t> files;
  for (std::size_t i = 0; i < metadata.files.size(); ++i)
    files[metadata.files[i]] = directory.file_bytes()[i];
  facts["files"] = files;
  std::size_t num_chunks = 0;
  for (const auto& [name, tensor] : metadata.tensors) num_chunks += tensor.chunks.size();
  facts["num_chunks"] = num_chunks;
  facts["objects"] = ordered_json::object();
  for (const auto& [name, place] : metadata.objects)
    facts["objects"][name] = checkpoint::to_json(directory.object(name));
  for (const auto& [name, why] : directory.refused()) facts["unreadable"][name] = why;
}

// Tensors and bytes of each part: model, optimizer, ema.
void add_parts(const TensorSource& source, ordered_json& facts) {
  const std::vector<std::string> parts = parts_of(source);
  for (const std::string& part : parts) {
    std::int64_t tensors = 0, bytes = 0;
    for (const std::string& name : source.names())
      if (name.starts_with(part + ".")) {
        ++tensors;
        bytes += source.get(name).bytes();
      }
    if (tensors > 0) facts["parts"][part] = {{"num_tensors", tensors}, {"bytes", bytes}};
  }
}

// Cut between characters of UTF-8.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 160;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

void read_everything(const TensorSource& source) {
  constexpr std::int64_t kStep = std::int64_t{1} << 20;  // elements
  std::vector<std::byte> block;
  for (const std::string& name : source.names()) {
    const TensorInfo& info = source.get(name);
    for (std::int64_t first = 0; first < info.numel(); first += kStep) {
      const std::int64_t count = std::min(kStep, info.numel() - first);
      block.resize(static_cast<std::size_t>(count * size_of(info.dtype)));
      source.read(info, first, count, block);
    }
  }
}

// Somebody may have kept nothing but the checkpoints.
bool has_records(const std::string& run_folder) {
  return path_exists(run_folder + "/metrics.jsonl");
}

void add_records(const report::LoggedRun& run, ordered_json& facts) {
  facts["step"] = run.last_step;
  std::int64_t planned = 0;  // unknown when the run counts epochs
  if (const std::string* text = run.setting("train.steps"))
    std::from_chars(text->data(), text->data() + text->size(), planned);
  if (planned > 0) facts["planned_steps"] = planned;
  for (const report::NamedSeries& named : run.series)
    if (report::is_loss(named.name) && std::isfinite(named.series.last()))
      facts["metrics"][named.name] = named.series.last();
}

struct Total {
  std::int64_t tensors = 0, numel = 0, bytes = 0;
  void add(const TensorInfo& tensor) {
    ++tensors;
    numel += tensor.numel();
    bytes += tensor.bytes();
  }
};

Metadata metadata_of(const TensorSource& source) {
  const auto* file = dynamic_cast<const SafetensorsFile*>(&source);
  return file ? file->metadata() : Metadata{};
}

std::string totals_of(const std::string& path, const TensorSource& source) {
  Total all;
  std::map<std::string_view, Total> by_dtype;
  for (const auto& name : source.names()) {
    const TensorInfo& tensor = source.get(name);
    all.add(tensor);
    by_dtype[name_of(tensor.dtype)].add(tensor);
  }
  std::ostringstream out;
  out << path << ": " << all.tensors << " tensors, " << format_count(all.numel) << " numbers, "
      << format_bytes(all.bytes);
  for (const auto& [dtype, total] : by_dtype)
    out << "; " << dtype << ": " << total.tensors << " tensors, " << format_bytes(total.bytes);
  out << "\n";
  return out.str();
}

}  // namespace

ordered_json checkpoint_facts(const std::string& path, bool verify) {
  ordered_json facts;
  const auto source = open_tensors(path);
  const auto* directory = dynamic_cast<const DcpDirectory*>(source.get());
  const std::string manifest_path = checkpoint::manifest_path(path);
  const bool own = path_exists(manifest_path);
  const bool is_file = dynamic_cast<const TorchFile*>(source.get()) != nullptr;
  const bool training_state = directory || own || (is_file && !weights_prefix(*source).empty());
  require<ConfigError>(training_state || !verify, "inspect: --verify is for checkpoints, but '",
                       path, "' holds only weights, without checksums");
  if (!training_state) return facts;

  std::optional<checkpoint::Manifest> manifest;
  if (own) {
    manifest = checkpoint::read_manifest(manifest_path);
    add_manifest(*manifest, facts);
  } else {
    facts["written_by"] = is_of_lightning(*source) ? "Lightning" : "torch";
    add_counters(*source, facts);
  }
  if (directory)
    add_directory(*directory, facts);
  else
    facts["format"] = "torch.save";
  add_parts(*source, facts);
  facts["health"] = "complete";
  if (!verify) return facts;
  if (manifest) {
    checkpoint::verify(path, *manifest);
    facts["health"] = "complete, every byte has its checksum";
  } else {
    read_everything(*source);
    facts["health"] = "complete, every tensor could be read; there are no checksums";
  }
  return facts;
}

std::string facts_text(const ordered_json& facts) {
  constexpr std::size_t kLabel = 18;
  std::ostringstream out;
  const auto line = [&](const std::string& label, const std::string& text) {
    out << label << std::string(std::max(kLabel, label.size() + 1) - label.size(), ' ')
        << shortened(text) << "\n";
  };
  const auto plain = [](const ordered_json& value) {
    return value.is_string() ? value.get<std::string>()
                             : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  for (const auto& [key, value] : facts.items()) {
    if (key == "files") {
      for (const auto& [file, bytes] : value.items())
        line("file", str(file, "  ", format_bytes(bytes.get<std::int64_t>())));
    } else if (key == "sets") {
      for (const auto& [set, about] : value.items())
        line("set", str(set, about["trains"] ? "  trains" : "  rests",
                        about["has_state"] ? ", with" : ", without", " optimizer state"));
    } else if (key == "parts") {
      for (const auto& [part, about] : value.items())
        line("part", str(part, "  ", about["num_tensors"].get<std::int64_t>(), " tensors, ",
                         format_bytes(about["bytes"].get<std::int64_t>())));
    } else if (key == "not_used") {
      for (const auto& sentence : value) line("not used", plain(sentence));
    } else if (key == "in_no_file") {
      for (const auto& [pattern, count] : value.items())
        line("in no file", str(pattern, "  ", count.get<std::int64_t>(), " tensors, random"));
    } else if (key == "objects" || key == "unreadable" || key == "metrics") {
      for (const auto& [name, item] : value.items())
        line(key == "objects"   ? "value"
             : key == "metrics" ? "metric"
                                : "unreadable",
             str(name, " = ", plain(item)));
    } else {
      std::string label = key;
      std::replace(label.begin(), label.end(), '_', ' ');
      line(label, plain(value));
    }
  }
  return out.str();
}

nlohmann::ordered_json model_facts(const UsedModel& used) {
  const models::BuiltModel built = build(used);
  if (!used.trained.empty()) nn::set_trainable(*built.module, used.trained);
  const auto* flamingo = dynamic_cast<const models::Flamingo*>(built.model);
  const models::ModelInfo& lm = built.model->info();
  nlohmann::ordered_json facts{
      {"model", lm.kind},    {"from", used.origin}, {"lm", used.config.lm},  {"family", lm.family},
      {"layers", lm.layers}, {"width", lm.dim},     {"vocabulary", lm.vocab}};
  if (flamingo) {
    facts["vision"] = used.config.vision;
    facts["image_size"] = flamingo->spec().vision.image_size;
    facts["cross_attn_every_n_layers"] = flamingo->spec().cross_attention_every;
  }
  if (!used.config.weights.empty()) facts["weights"] = used.config.weights;
  if (used.config.lora) facts["lora"] = used.config.lora->targets;
  facts["tokenizer"] = built.tokenizer != nullptr;
  std::int64_t all = 0, trains = 0;
  std::vector<std::string> fresh;
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module)) {
    all += parameter.tensor.numel();
    if (parameter.tensor.requires_grad()) trains += parameter.tensor.numel();
    if (!built.source->find(parameter.name)) fresh.push_back(parameter.name);
  }
  facts["parameters"] = all;
  facts["trains"] = trains;
  if (!fresh.empty())
    for (const auto& [pattern, count] : models::name_patterns(fresh))
      facts["in_no_file"][pattern] = count;
  return facts;
}

ordered_json run_facts(const std::string& run_folder) {
  ordered_json facts{{"run", run_folder}};
  if (has_records(run_folder)) add_records(report::read_logged_run(run_folder), facts);
  facts["checkpoints"] = ordered_json::array();
  for (const auto& listed :
       checkpoint::list_checkpoints(checkpoint::checkpoints_folder(run_folder)))
    facts["checkpoints"].push_back(listed.name);
  return facts;
}

std::string tensors_text(const std::string& path) {
  const auto source = open_tensors(path);
  std::ostringstream out;
  for (const auto& [key, value] : metadata_of(*source))
    out << "metadata  " << key << " = " << value << "\n";
  std::size_t longest = 0;
  const auto names = source->names();
  for (const auto& name : names) longest = std::max(longest, name.size());
  for (const auto& name : names) {
    const TensorInfo& tensor = source->get(name);
    out << name << std::string(longest - name.size() + 2, ' ') << name_of(tensor.dtype) << " ["
        << join(tensor.shape) << "]  " << format_bytes(tensor.bytes()) << "\n";
  }
  if (const std::string words = unreadable_in_words(*source); !words.empty()) out << words << "\n";
  out << totals_of(path, *source);
  return out.str();
}

std::string totals_text(const std::string& path) { return totals_of(path, *open_tensors(path)); }

nlohmann::ordered_json tensors_json(const std::string& path) {
  const auto source = open_tensors(path);
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  Total all;
  for (const auto& name : source->names()) {
    const TensorInfo& tensor = source->get(name);
    all.add(tensor);
    tensors[name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"bytes", tensor.bytes()}};
  }
  return {{"path", path},
          {"metadata", metadata_of(*source)},
          {"num_tensors", all.tensors},
          {"numel", all.numel},
          {"bytes", all.bytes},
          {"tensors", tensors}};
}

}  // namespace floe::cli
