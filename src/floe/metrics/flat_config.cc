#include "floe/metrics/flat_config.h"

namespace floe::metrics {
namespace {

using Settings = std::vector<std::pair<std::string, nlohmann::json>>;

void flatten(const std::string& name, const nlohmann::json& value, Settings& settings) {
  if (!value.is_object() || value.empty()) {
    settings.emplace_back(name, value);
    return;
  }
  for (const auto& [key, part] : value.items())
    flatten(name.empty() ? key : name + "." + key, part, settings);
}

}  // namespace

Settings flat_config(const nlohmann::json& config) {
  Settings settings;
  if (config.is_object() && !config.empty()) flatten("", config, settings);
  return settings;
}

}  // namespace floe::metrics
