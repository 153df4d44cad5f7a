#include "floe/io/training_state.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "floe/io/dcp_directory.h"
#include "floe/io/torch_file.h"

namespace floe {
namespace {

using pickle::Kind;

std::set<std::string> parts_of_directory(const DcpDirectory& directory) {
  std::set<std::string> parts;
  const DcpMetadata& metadata = directory.metadata();
  for (const auto& [name, tensor] : metadata.tensors) {
    const auto path = metadata.paths.find(name);
    if (path == metadata.paths.end()) continue;
    const pickle::Items& steps = path->second.items();
    if (steps.size() > 1 && steps[0].is(Kind::text)) parts.insert(steps[0].text());
  }
  return parts;
}

std::set<std::string> parts_of_file(const TorchFile& file) {
  std::set<std::string> parts;
  if (!file.root().has_entries()) return parts;
  for (const auto& [key, value] : file.root().entries())
    if (key.is(Kind::text) && value.has_entries()) parts.insert(key.text());
  return parts;
}

bool any_starts_with(const std::vector<std::string>& names, std::string_view prefix) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.starts_with(prefix); });
}

const pickle::Value none{};

const pickle::Value& value_at(const TorchFile& file, const std::string& key) {
  const pickle::Value* value = file.root().find(key);
  return value ? *value : none;
}

}  // namespace

std::vector<std::string> parts_of(const TensorSource& source) {
  std::set<std::string> parts;
  if (const auto* directory = dynamic_cast<const DcpDirectory*>(&source))
    parts = parts_of_directory(*directory);
  else if (const auto* file = dynamic_cast<const TorchFile*>(&source))
    parts = parts_of_file(*file);
  return {parts.begin(), parts.end()};
}

std::string weights_prefix(const TensorSource& source) {
  const std::vector<std::string> names = source.names(), parts = parts_of(source);
  for (const char* prefix : {"model_state_dict.", "state_dict."})
    if (any_starts_with(names, prefix)) return prefix;
  const bool has_model = parts.empty()
                             ? any_starts_with(names, "optim")
                             : std::find(parts.begin(), parts.end(), "model") != parts.end();
  return has_model && any_starts_with(names, "model.") ? "model." : "";
}

pickle::Value state_value(const TensorSource& source, const std::string& key) {
  if (const auto* file = dynamic_cast<const TorchFile*>(&source)) return value_at(*file, key);
  const auto* directory = dynamic_cast<const DcpDirectory*>(&source);
  if (!directory) return none;
  const std::string meta = directory->directory() + "/meta.pt";
  std::error_code ignored;
  return std::filesystem::exists(meta, ignored) ? value_at(TorchFile(meta), key) : none;
}

bool is_of_lightning(const TensorSource& source) {
  return !state_value(source, "pytorch-lightning_version").is_none();
}

}  // namespace floe
