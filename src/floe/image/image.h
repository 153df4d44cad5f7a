// Pictures from outside, as RGB bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace floe::image {

struct Image {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]
};

// From so many pixels on Pillow takes a file for a decompression bomb and raises.
constexpr std::int64_t kMostPixels = 2 * 89478485;

// Decodes a JPEG (baseline or progressive; gray, YCbCr, RGB, CMYK or YCCK), PNG, WebP or GIF (first
// frame) to the bytes that Pillow's convert("RGB") gives. What it is, is told by its content.
// - Gray is repeated, palettes are looked up, 16 bits become 8 (gray: clipped at 255), alpha and
//   transparency are dropped without blending; EXIF rotation and colour profiles are ignored.
// - A file that is cut off is an error, even when only its end mark is missing where Pillow insists
//   on one (JPEG). Damage inside a JPEG scan that libjpeg only warns about is not.
// - A picture of more than `most_pixels` is refused before memory is taken for it.
// Throws DataError with a short reason that is the same for every file of the same defect, such as
// "jpeg: truncated", so that reasons can be counted. Thread-safe.
Image decode(std::span<const std::byte> file, std::int64_t most_pixels = kMostPixels);

// The same into `out`, whose memory is used again when it is large enough. After an error its
// content is unspecified.
void decode(std::span<const std::byte> file, Image& out, std::int64_t most_pixels = kMostPixels);

// A baseline JPEG with 4:2:0 chroma and a JFIF header, byte for byte as Pillow's save() writes it
// without options (quality 75).
std::vector<std::byte> encode_jpeg(const Image& image, int quality = 75);

// An RGB PNG, for people to look at.
std::vector<std::byte> encode_png(const Image& image);

}  // namespace floe::image
