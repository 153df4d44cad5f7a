// Any bytes as a pickle: refused with a DataError, or a value that survives writing and reading.
#include "floe/io/torch_file/pickle.h"

#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"

namespace {

void check(std::string_view bytes) {
  const floe::pickle::Value value = floe::pickle::read(bytes, "fuzz");
  if (shown(value).size() > 1000) std::abort();
  std::string written;
  try {
    written = floe::pickle::write(value);
  } catch (const floe::Error&) {
    return;  // sets are written as calls, so one near the limit of depth is too deep to write
  }
  // Writing turns bytes and sets into calls; after that nothing may change.
  if (floe::pickle::write(floe::pickle::read(written, "again")) != written) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check({reinterpret_cast<const char*>(data), size});
  } catch (const floe::DataError&) {
  }
  return 0;
}
