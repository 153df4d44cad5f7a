// Any text as a pattern of shards: a list within its bounds, or a ConfigError.
#include "floe/data/shards/shard_list.h"

#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::size_t kMost = 5000;
  try {
    const auto names = floe::data::expand_braces(text, kMost);
    if (names.size() > kMost) std::abort();
  } catch (const floe::ConfigError&) {
  }
  try {
    // Remote, so that nothing of this machine is looked at.
    if (text.find("::") == std::string_view::npos && size < 60)
      for (const auto& shard : floe::data::expand_shards("s3://" + std::string(text)))
        if (!shard.starts_with("pipe:aws s3 cp ")) std::abort();
  } catch (const floe::ConfigError&) {
  }
  return 0;
}
