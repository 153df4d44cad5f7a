// Pillow walks over the markers of a JPEG file before libjpeg sees it, and raises for some that
// libjpeg passes over. Such files are refused here too.
#include <algorithm>

#include "floe/image/formats.h"

namespace floe::image {
namespace {

class MarkerReader {
 public:
  explicit MarkerReader(Bytes file) : rest_(file) {}

  int byte() {
    if (rest_.empty()) fail("jpeg", "truncated");
    const int value = std::to_integer<int>(rest_[0]);
    rest_ = rest_.subspan(1);
    return value;
  }
  // What a segment holds behind its length.
  Bytes segment() {
    const int high = byte(), low = byte();
    const auto size = static_cast<std::size_t>(std::max(0, high * 256 + low - 2));
    if (rest_.size() < size) fail("jpeg", "truncated");
    const Bytes body = rest_.first(size);
    rest_ = rest_.subspan(size);
    return body;
  }

 private:
  Bytes rest_;
};

[[noreturn]] void broken() { fail("jpeg", "broken header"); }

void check_frame(Bytes body) {
  if (body.size() < 6 || body.size() % 3 != 0) broken();
  if (body[0] != std::byte{8}) fail("jpeg", "not 8 bits per sample");
  const int components = std::to_integer<int>(body[5]);
  if (components != 1 && components != 3 && components != 4)
    fail("jpeg", "neither one, three nor four components");
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

}  // namespace

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

}  // namespace floe::image
