// The formats behind image.h, one file each. Each decoder gives what Pillow 12 gives, and refuses
// what it refuses: which damaged pictures a data set keeps is part of its content.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "floe/image/image.h"

namespace floe::image {

using Bytes = std::span<const std::byte>;

// Makes pictures of the size that a file names, but not larger than allowed.
class Canvas {
 public:
  Canvas(Image& image, std::int64_t most_pixels) : image_(image), most_pixels_(most_pixels) {}
  // Refuses pictures without pixels and too large ones before it takes memory.
  Image& set_size(std::string_view format, std::int64_t width, std::int64_t height);

 private:
  Image& image_;
  std::int64_t most_pixels_;
};

void decode_jpeg(Bytes file, Canvas canvas);
void decode_png(Bytes file, Canvas canvas);
void decode_webp(Bytes file, Canvas canvas);
void decode_gif(Bytes file, Canvas canvas);

// Throws Error for a picture that cannot be encoded: an empty one, a side above `most_side`.
void check_encodable(const Image& image, int most_side);

// Throws DataError "FORMAT: REASON".
[[noreturn]] void fail(std::string_view format, std::string_view reason);

using Colour = std::array<std::uint8_t, 3>;
void fill(Image& image, const Colour& colour);

inline bool starts_with(Bytes file, std::string_view magic, std::size_t at = 0) {
  if (file.size() < at + magic.size()) return false;
  return std::string_view(reinterpret_cast<const char*>(file.data()) + at, magic.size()) == magic;
}

}  // namespace floe::image
