// Any bytes as JSON: refused with a DataError, or a value that survives writing and reading.
#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"
#include "floe/io/file/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto value = floe::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (floe::shown(value).size() > 200) std::abort();
    if (floe::parse_json(value.dump(), "again") != value) std::abort();
  } catch (const floe::DataError&) {
  }
  return 0;
}
