#include "tests/fuzz/picture.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return floe::fuzz::decode_picture("GIF89a", data, size);
}
