// Any text as YAML: refused with a ConfigError, or it survives writing and reading; and what binds
// to a schema is the same configuration when it is printed and loaded again.
#include <cstdint>
#include <cstdlib>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/schema/yaml_text.h"
#include "tests/config/sample_config.h"

namespace {

using floe::config::Value;

std::optional<std::string> no_environment(const std::string&) { return std::nullopt; }

void check(const std::string& text) {
  const Value tree = floe::config::parse_yaml(text, "fuzz");
  if (!(floe::config::parse_yaml(floe::config::write_yaml(tree), "again") == tree)) std::abort();
  const auto loaded = floe::config::load<floe::test::SampleConfig>(tree, {}, no_environment);
  const Value printed =
      floe::config::parse_yaml(floe::config::print_config(loaded.values), "printed");
  const auto again = floe::config::load<floe::test::SampleConfig>(printed, {}, no_environment);
  if (!(again.values == loaded.values)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const floe::ConfigError&) {
  }
  return 0;
}
