// Pictures to files.
#pragma once

#include <cstddef>
#include <vector>

#include "floe/image/image.h"

namespace floe::image {

// A baseline JPEG with 4:2:0 chroma and a JFIF header, byte for byte as Pillow's save() writes it
// without options (quality 75).
std::vector<std::byte> encode_jpeg(const Image& image, int quality = 75);

// An RGB PNG, for people to look at.
std::vector<std::byte> encode_png(const Image& image);

}  // namespace floe::image
