#include "floe/image/image.h"

#include <algorithm>
#include <string_view>

#include "floe/core/error.h"
#include "floe/image/formats.h"

namespace floe::image {

void fail(std::string_view format, std::string_view reason) {
  throw DataError(str(format, ": ", reason));
}

Image& Canvas::set_size(std::string_view format, std::int64_t width, std::int64_t height) {
  if (width <= 0 || height <= 0) fail(format, "no pixels");
  if (width > most_pixels_ || height > most_pixels_ / width) fail(format, "too many pixels");
  image_.width = static_cast<int>(width);
  image_.height = static_cast<int>(height);
  image_.rgb.resize(static_cast<std::size_t>(width * height * 3));
  return image_;
}

void fill(Image& image, const Colour& colour) {
  for (std::size_t i = 0; i < image.rgb.size(); i += 3)
    std::copy(colour.begin(), colour.end(), &image.rgb[i]);
}

void decode(std::span<const std::byte> file, Image& out, std::int64_t most_pixels) {
  using namespace std::string_view_literals;
  const Canvas canvas(out, most_pixels);
  if (starts_with(file, "\xff\xd8\xff")) return decode_jpeg(file, canvas);
  if (starts_with(file, "\x89PNG\r\n\x1a\n")) return decode_png(file, canvas);
  if (starts_with(file, "GIF87a") || starts_with(file, "GIF89a")) return decode_gif(file, canvas);
  if (starts_with(file, "RIFF") && starts_with(file, "WEBPVP8", 8))
    return decode_webp(file, canvas);
  fail("image", file.empty() ? "empty file"sv : "neither JPEG, PNG, WebP nor GIF"sv);
}

Image decode(std::span<const std::byte> file, std::int64_t most_pixels) {
  Image out;
  decode(file, out, most_pixels);
  return out;
}

void check_encodable(const Image& image, int most_side) {
  require(image.width > 0 && image.height > 0 && image.width <= most_side &&
              image.height <= most_side &&
              image.rgb.size() == std::size_t{3} * image.width * image.height,
          "cannot encode a picture of ", image.width, " x ", image.height, " pixels and ",
          image.rgb.size(), " bytes");
}

}  // namespace floe::image
