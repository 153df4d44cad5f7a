// The chunks of a PNG file, read and checked as Pillow does it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "floe/image/formats.h"

namespace floe::image {

struct PngHeader {
  std::int64_t width = 0, height = 0;
  int bit_depth = 0;
  int colour_type = 0;  // 0 gray, 2 RGB, 3 palette, 4 gray and alpha, 6 RGB and alpha
  bool interlaced = false;
  std::array<Colour, 256> palette{};  // black where the file says nothing
  struct Rectangle {
    std::int64_t left = 0, top = 0, width = 0, height = 0;
  } frame;  // what the data fills; the whole picture unless it is an animation
};

// Walks the file in the order of Pillow's reader: header(), then data() as long as the pixels need
// more, then finish(). Each throws DataError for what makes Pillow raise: before the data every
// chunk's checksum counts and metadata is looked at, in the data and behind it no checksum does.
class PngChunks {
 public:
  explicit PngChunks(Bytes file);

  PngHeader header();
  // The next bytes of compressed pixels; throws when there are no more.
  Bytes data();
  void finish();

 private:
  struct Chunk {
    Bytes name;  // four letters
    std::uint32_t length = 0;
    bool is(std::string_view other) const { return starts_with(name, other); }
  };
  std::optional<Chunk> next_chunk();
  Bytes take(std::size_t count);      // or fewer at the end of the file
  Bytes take_all(std::size_t count);  // or "truncated"
  Bytes body(const Chunk& chunk) { return take_all(chunk.length); }
  void check_chunk(const Chunk& chunk, Bytes body);
  void check_transparency(Bytes body);
  void check_compressed(Bytes zlib);
  void count_text(std::size_t bytes);
  void read_header(Bytes body);
  void read_frame_control(Bytes body);
  void read_frame_number(Bytes body, bool first_is_allowed);
  void take_frame_number(const Chunk& chunk);

  Bytes rest_;
  PngHeader header_;
  std::uint64_t data_left_ = 0;  // of the current data chunk
  std::optional<std::uint32_t> num_frames_, sequence_;
  bool has_header_ = false, has_frame_ = false, is_animated_ = false;
  bool has_palette_ = false, has_transparent_colour_ = false;
  std::size_t text_bytes_ = 0;
};

}  // namespace floe::image
