// JPEG through libjpeg-turbo, with the settings that Pillow leaves alone: accurate DCT, fancy
// upsampling, block smoothing.

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <memory>

#include "floe/core/error.h"
#include "floe/image/formats.h"
#include "floe/image/libjpeg.h"

namespace floe::image {
namespace {

constexpr std::string_view kFormat = "jpeg";

// libjpeg cannot return from an error; Note [Jumps]: between setjmp and longjmp no object with a
// destructor is made, so that the jump skips none.
struct ErrorManager : jpeg_error_mgr {
  std::jmp_buf jump;
};

[[noreturn]] void on_error(j_common_ptr info) {
  std::longjmp(static_cast<ErrorManager*>(info->err)->jump, 1);
}

// Warnings are kept quiet: a damaged scan is a picture all the same.
void ignore_message(j_common_ptr) {}

// The whole file in memory; asking for more suspends the decoder, which means "truncated" here.
struct Source : jpeg_source_mgr {
  explicit Source(Bytes file) : jpeg_source_mgr{} {
    next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
    bytes_in_buffer = file.size();
    init_source = [](j_decompress_ptr) {};
    term_source = [](j_decompress_ptr) {};
    resync_to_restart = jpeg_resync_to_restart;
    fill_input_buffer = [](j_decompress_ptr) -> boolean { return FALSE; };
    skip_input_data = [](j_decompress_ptr info, long count) {
      if (count <= 0) return;
      const std::size_t here = info->src->bytes_in_buffer;
      const std::size_t skipped = std::min(static_cast<std::size_t>(count), here);
      info->src->next_input_byte += skipped;
      info->src->bytes_in_buffer -= skipped;
    };
  }
};

struct Decompressor {
  explicit Decompressor(Bytes file) : source(file) {
    info.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.output_message = ignore_message;
  }
  ~Decompressor() { jpeg_destroy_decompress(&info); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  ErrorManager errors;
  Source source;
  jpeg_decompress_struct info{};
};

enum class Outcome { done, truncated, broken };

// Adobe's files hold inverted CMYK, and Pillow takes every file for one of Adobe's.
void cmyk_to_rgb(const std::uint8_t* cmyk, int width, std::uint8_t* rgb) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int not_k = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const int t = (255 - cmyk[c]) * not_k + 128;
      rgb[c] = static_cast<std::uint8_t>(std::max(0, not_k - (((t >> 8) + t) >> 8)));
    }
  }
}

void gray_to_rgb(const std::uint8_t* gray, int width, std::uint8_t* rgb) {
  for (int x = 0; x < width; ++x, rgb += 3) rgb[0] = rgb[1] = rgb[2] = gray[x];
}

// Note [Jumps] holds for this function and the next.
Outcome read_header(Decompressor& jpeg) {
  if (setjmp(jpeg.errors.jump)) return Outcome::broken;
  jpeg_create_decompress(&jpeg.info);
  jpeg.info.src = &jpeg.source;
  int status;
  do status = jpeg_read_header(&jpeg.info, FALSE);
  while (status == JPEG_HEADER_TABLES_ONLY);
  return status == JPEG_SUSPENDED ? Outcome::truncated : Outcome::done;
}

// `row` is scratch for one row of components when they are not RGB.
Outcome read_pixels(Decompressor& jpeg, std::uint8_t* row, std::uint8_t* rgb) {
  jpeg_decompress_struct& info = jpeg.info;
  if (setjmp(jpeg.errors.jump)) return Outcome::broken;
  if (!jpeg_start_decompress(&info)) return Outcome::truncated;
  const std::size_t stride = std::size_t{3} * info.output_width;
  while (info.output_scanline < info.output_height) {
    std::uint8_t* out = rgb + stride * info.output_scanline;
    JSAMPROW target = info.out_color_space == JCS_RGB ? out : row;
    if (jpeg_read_scanlines(&info, &target, 1) != 1) return Outcome::truncated;
    const int width = static_cast<int>(info.output_width);
    if (info.out_color_space == JCS_GRAYSCALE) gray_to_rgb(row, width, out);
    if (info.out_color_space == JCS_CMYK) cmyk_to_rgb(row, width, out);
  }
  jpeg_finish_decompress(&info);  // what is missing behind the last row does not matter
  return Outcome::done;
}

void check(Outcome outcome) {
  if (outcome == Outcome::truncated) fail(kFormat, "truncated");
  if (outcome == Outcome::broken) fail(kFormat, "broken");
}

class MarkerReader {
 public:
  explicit MarkerReader(Bytes file) : rest_(file) {}

  int byte() {
    if (rest_.empty()) fail(kFormat, "truncated");
    const int value = std::to_integer<int>(rest_[0]);
    rest_ = rest_.subspan(1);
    return value;
  }
  // What a segment holds behind its length.
  Bytes segment() {
    const int high = byte(), low = byte();
    const auto size = static_cast<std::size_t>(std::max(0, high * 256 + low - 2));
    if (rest_.size() < size) fail(kFormat, "truncated");
    const Bytes body = rest_.first(size);
    rest_ = rest_.subspan(size);
    return body;
  }

 private:
  Bytes rest_;
};

[[noreturn]] void broken() { fail(kFormat, "broken header"); }

void check_frame(Bytes body) {
  if (body.size() < 6 || body.size() % 3 != 0) broken();
  if (body[0] != std::byte{8}) fail(kFormat, "not 8 bits per sample");
  const int components = std::to_integer<int>(body[5]);
  if (components != 1 && components != 3 && components != 4)
    fail(kFormat, "neither one, three nor four components");
}

void check_quantisation(Bytes body) {
  while (!body.empty()) {
    const std::size_t table = std::to_integer<int>(body[0]) < 16 ? 1 + 64 : 1 + 128;
    if (body.size() < table) broken();
    body = body.subspan(table);
  }
}

void check_application(int number, Bytes body) {
  if (number == 0 && starts_with(body, "JFIF") && body.size() < 7) broken();
  if (number == 14 && starts_with(body, "Adobe") && body.size() < 7) broken();
}

// Pillow walks over the markers of a JPEG file before libjpeg sees it, and raises for some that
// libjpeg passes over. Such files are refused here too.
void check_jpeg_markers(Bytes file) {
  MarkerReader reader(file.subspan(2));
  for (;;) {
    if (reader.byte() != 0xff) continue;  // junk between segments
    int marker = reader.byte();
    while (marker == 0xff) marker = reader.byte();  // fill bytes
    if (marker == 0x00) continue;
    if (marker < 0xc0) broken();
    if (marker == 0xda) return;
    const bool alone =
        marker == 0xc8 || (marker >= 0xd0 && marker <= 0xd9) || (marker >= 0xf0 && marker <= 0xfd);
    if (alone) continue;
    const Bytes body = reader.segment();
    const bool is_table = marker == 0xc4 || marker == 0xcc;  // Huffman, arithmetic
    if ((marker <= 0xcf && !is_table) || marker == 0xde) check_frame(body);
    if (marker == 0xdb) check_quantisation(body);
    if (marker >= 0xe0 && marker <= 0xef) check_application(marker - 0xe0, body);
  }
}

// False when libjpeg gave up. Note [Jumps] holds here too.
bool compress(const Image& image, int quality, unsigned char** bytes, unsigned long* size) {
  jpeg_compress_struct info{};
  ErrorManager errors;
  info.err = jpeg_std_error(&errors);
  errors.error_exit = on_error;
  errors.output_message = ignore_message;
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

}  // namespace

void decode_jpeg(Bytes file, Canvas canvas) {
  check_jpeg_markers(file);
  Decompressor jpeg(file);
  check(read_header(jpeg));
  jpeg_decompress_struct& info = jpeg.info;
  switch (info.num_components) {
    case 1: info.out_color_space = JCS_GRAYSCALE; break;
    case 3: info.out_color_space = JCS_RGB; break;
    case 4: info.out_color_space = JCS_CMYK; break;
    default: fail(kFormat, "neither one, three nor four components");
  }
  Image& out = canvas.set_size(kFormat, info.image_width, info.image_height);
  std::vector<std::uint8_t> row;
  if (info.out_color_space != JCS_RGB)
    row.resize(std::size_t{info.image_width} * static_cast<std::size_t>(info.num_components));
  check(read_pixels(jpeg, row.data(), out.rgb.data()));
}

std::vector<std::byte> encode_jpeg(const Image& image, int quality) {
  check_encodable(image, JPEG_MAX_DIMENSION);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool done = compress(image, quality, &bytes, &size);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owner(bytes, &std::free);
  require(done, "cannot encode a picture of ", image.width, " x ", image.height, " pixels as JPEG");
  const auto view = std::as_bytes(std::span(bytes, size));
  return {view.begin(), view.end()};
}

}  // namespace floe::image
