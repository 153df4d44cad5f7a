// Any lines as overrides of one configuration: each is refused with a ConfigError, or applies; then
// the result resolves and binds, or is refused.
#include <cstdint>
#include <sstream>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "tests/config/sample_config.h"

namespace {

std::optional<std::string> no_environment(const std::string&) { return std::nullopt; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace floe::config;
  Value root = parse_yaml("run: {name: x}\ntrain: {steps: 5, clip: {norm: 1}}\n", "base");
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; std::getline(lines, line);) {
    try {
      apply(parse_override(line), root);
    } catch (const floe::ConfigError&) {
    }
  }
  try {
    load<floe::test::SampleConfig>(root, {}, no_environment);
  } catch (const floe::ConfigError&) {
  }
  return 0;
}
