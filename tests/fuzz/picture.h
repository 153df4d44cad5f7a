// Any bytes behind the first ones of a picture format: refused with a DataError, or decoded to as
// many bytes as the size says, which then go through the transform.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "floe/core/error.h"
#include "floe/image/transform.h"

namespace floe::fuzz {

inline int decode_picture(std::string_view magic, const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kMostPixels = 1 << 18;  // so that a header alone takes no time
  std::vector<std::uint8_t> file(data, data + size);
  std::copy_n(magic.begin(), std::min(magic.size(), size), file.begin());
  try {
    const image::Image image = image::decode(std::as_bytes(std::span(file)), kMostPixels);
    if (image.rgb.size() != std::size_t{3} * static_cast<std::size_t>(image.width) *
                                static_cast<std::size_t>(image.height))
      std::abort();
    const image::Transform transform({.size = 16});
    std::vector<std::uint8_t> crop(transform.crop_bytes());
    transform.crop(image, crop.data());
  } catch (const DataError&) {
  }
  return 0;
}

}  // namespace floe::fuzz
