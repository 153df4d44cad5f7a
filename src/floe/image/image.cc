#include "floe/image/image.h"

#include <zlib.h>

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "floe/core/error.h"
#include "floe/image/formats.h"
#include "floe/image/libjpeg.h"

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

namespace {

void check(const Image& image, int most_side) {
  require(image.width > 0 && image.height > 0 && image.width <= most_side &&
              image.height <= most_side &&
              image.rgb.size() == std::size_t{3} * image.width * image.height,
          "cannot encode a picture of ", image.width, " x ", image.height, " pixels and ",
          image.rgb.size(), " bytes");
}

struct ErrorManager : jpeg_error_mgr {
  std::jmp_buf jump;
};

// False when libjpeg gave up. Between setjmp and longjmp no object with a destructor is made.
bool compress(const Image& image, int quality, unsigned char** bytes, unsigned long* size) {
  jpeg_compress_struct info{};
  ErrorManager errors;
  info.err = jpeg_std_error(&errors);
  errors.error_exit = [](j_common_ptr any) {
    std::longjmp(static_cast<ErrorManager*>(any->err)->jump, 1);
  };
  errors.output_message = [](j_common_ptr) {};
  if (setjmp(errors.jump)) {
    jpeg_destroy_compress(&info);
    return false;
  }
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, bytes, size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPLE*>(image.rgb.data()) +
                std::size_t{3} * info.image_width * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  return true;
}

void put_word(std::vector<std::byte>& out, std::uint32_t word) {
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<std::byte>(word >> shift & 255));
}

// A chunk of a PNG file: length, name, data, checksum of the last two.
void put_chunk(std::vector<std::byte>& out, std::string_view name,
               std::span<const std::byte> data) {
  put_word(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  const auto letters = std::as_bytes(std::span(name));
  out.insert(out.end(), letters.begin(), letters.end());
  out.insert(out.end(), data.begin(), data.end());
  put_word(out, static_cast<std::uint32_t>(
                    crc32_z(0, reinterpret_cast<const Bytef*>(&out[begin]), out.size() - begin)));
}

}  // namespace

std::vector<std::byte> encode_jpeg(const Image& image, int quality) {
  check(image, JPEG_MAX_DIMENSION);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool done = compress(image, quality, &bytes, &size);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owner(bytes, &std::free);
  require(done, "cannot encode a picture of ", image.width, " x ", image.height, " pixels as JPEG");
  const auto view = std::as_bytes(std::span(bytes, size));
  return {view.begin(), view.end()};
}

std::vector<std::byte> encode_png(const Image& image) {
  check(image, 1 << 24);
  // Every row is stored as its difference to the row above (filter 2).
  const std::size_t stride = std::size_t{3} * image.width;
  std::vector<Bytef> rows;
  rows.reserve((stride + 1) * static_cast<std::size_t>(image.height));
  for (int y = 0; y < image.height; ++y) {
    rows.push_back(2);
    const std::uint8_t* row = &image.rgb[stride * static_cast<std::size_t>(y)];
    for (std::size_t x = 0; x < stride; ++x)
      rows.push_back(static_cast<Bytef>(row[x] - (y > 0 ? row[x - stride] : 0)));
  }
  uLongf size = compressBound(rows.size());
  std::vector<std::byte> data(size);
  const int status =
      compress2(reinterpret_cast<Bytef*>(data.data()), &size, rows.data(), rows.size(), 6);
  require(status == Z_OK, "cannot compress a picture: zlib says ", status);
  data.resize(size);

  std::vector<std::byte> header;
  put_word(header, static_cast<std::uint32_t>(image.width));
  put_word(header, static_cast<std::uint32_t>(image.height));
  for (const int field : {8, 2, 0, 0, 0})  // 8 bits, RGB, deflate, no other filters, not interlaced
    header.push_back(static_cast<std::byte>(field));
  std::vector<std::byte> out;
  for (const char letter : std::string_view("\x89PNG\r\n\x1a\n"))
    out.push_back(static_cast<std::byte>(letter));
  put_chunk(out, "IHDR", header);
  put_chunk(out, "IDAT", data);
  put_chunk(out, "IEND", {});
  return out;
}

}  // namespace floe::image
