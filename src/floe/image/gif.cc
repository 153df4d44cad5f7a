// The first frame of a GIF. Pillow's reader decides here (not giflib's): which odd files are
// pictures, and what lies outside the frame.
#include <array>
#include <cstring>
#include <optional>

#include "floe/image/formats.h"

namespace floe::image {
namespace {

constexpr std::string_view kFormat = "gif";

// Takes bytes from the front of the file; past its end the file is truncated.
class Reader {
 public:
  explicit Reader(Bytes file) : rest_(file) {}

  bool at_end() const { return rest_.empty(); }
  Bytes take(std::size_t count) {
    if (rest_.size() < count) fail(kFormat, "truncated");
    const Bytes taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  int byte() { return std::to_integer<int>(take(1)[0]); }
  // A length and so many bytes; empty for the mark at the end of such blocks.
  Bytes block() { return take(static_cast<std::size_t>(byte())); }
  void skip_blocks() {
    while (!block().empty()) {
    }
  }

 private:
  Bytes rest_;
};

int at(Bytes bytes, std::size_t i) { return std::to_integer<int>(bytes[i]); }
int word(Bytes bytes, std::size_t i) { return at(bytes, i) | at(bytes, i + 1) << 8; }

using Palette = std::array<Colour, 256>;

Palette gray_ramp() {
  Palette palette;
  for (std::size_t i = 0; i < 256; ++i) palette[i].fill(static_cast<std::uint8_t>(i));
  return palette;
}

// The colours behind the given ones are black. Nothing when colour i is gray level i throughout:
// such a table is no palette, and indices beyond it are gray levels too.
std::optional<Palette> read_palette(Reader& reader, int flags) {
  const std::size_t num_colours = std::size_t{2} << (flags & 7);
  const Bytes bytes = reader.take(3 * num_colours);
  Palette palette{};
  std::memcpy(palette.data(), bytes.data(), bytes.size());
  const Palette gray = gray_ramp();
  if (std::equal(gray.begin(), gray.begin() + num_colours, palette.begin())) return std::nullopt;
  return palette;
}

// Where pixels of a frame go, in the order in which they are stored.
class FrameCursor {
 public:
  FrameCursor(int width, int height, bool interlaced)
      : width_(width), height_(height), pass_(interlaced ? 0 : kLastPass) {
    step_ = interlaced ? 8 : 1;
  }
  int x() const { return x_; }
  int y() const { return y_; }
  // To the next pixel; false when that was the last.
  bool advance() {
    if (++x_ < width_) return true;
    x_ = 0;
    y_ += step_;
    while (y_ >= height_) {
      if (pass_ == kLastPass) return false;
      ++pass_;
      y_ = kFirstRow[static_cast<std::size_t>(pass_)];
      step_ = kStep[static_cast<std::size_t>(pass_)];
    }
    return true;
  }

 private:
  static constexpr int kLastPass = 3;
  static constexpr std::array<int, 4> kFirstRow{0, 4, 2, 1}, kStep{8, 8, 4, 2};
  int width_, height_, x_ = 0, y_ = 0;
  int pass_, step_;
};

// The variable-length codes of a frame, out of its blocks. The empty block that should end them is
// passed over as Pillow does it: data that goes on behind it counts.
class CodeReader {
 public:
  explicit CodeReader(Reader& reader) : reader_(reader) {}
  int next(int num_bits) {
    while (num_have_ < num_bits) {
      if (block_.empty()) {
        block_ = reader_.block();
        continue;
      }
      have_ |= std::to_integer<std::uint32_t>(block_[0]) << num_have_;
      num_have_ += 8;
      block_ = block_.subspan(1);
    }
    const int code = static_cast<int>(have_ & ((1U << num_bits) - 1));
    have_ >>= num_bits;
    num_have_ -= num_bits;
    return code;
  }

 private:
  Reader& reader_;
  Bytes block_;
  std::uint32_t have_ = 0;
  int num_have_ = 0;
};

// LZW: codes below `clear` are pixels, those behind `end` strings that were seen before.
class LzwReader {
 public:
  LzwReader(Reader& reader, int pixel_bits) : codes_(reader), pixel_bits_(pixel_bits) {
    if (pixel_bits > kMostBits) fail(kFormat, "bad code size");
    restart();
  }

  // The next run of pixels.
  std::span<const std::uint8_t> next() {
    const int clear = 1 << pixel_bits_, end = clear + 1;
    int code = codes_.next(code_bits_);
    while (code == clear) {
      restart();
      code = codes_.next(code_bits_);
    }
    if (code == end) fail(kFormat, "truncated");
    if (last_ < 0) {  // the first behind a clear mark
      if (code > clear) fail(kFormat, "broken");
      last_ = code;
      first_pixel_ = static_cast<std::uint8_t>(code);
      return {&first_pixel_, 1};
    }
    if (code > next_) fail(kFormat, "broken");
    std::size_t begin = string_.size();
    const auto put = [&](std::uint8_t pixel) {
      if (begin == 0) fail(kFormat, "broken");
      string_[--begin] = pixel;
    };
    int at = code;
    if (code == next_) {  // the string that this very code defines
      put(first_pixel_);
      at = last_;
    }
    while (at >= clear) {
      if (at >= kTableSize) fail(kFormat, "broken");
      put(pixel_[static_cast<std::size_t>(at)]);
      at = prefix_[static_cast<std::size_t>(at)];
    }
    first_pixel_ = static_cast<std::uint8_t>(at);
    put(first_pixel_);
    define();
    last_ = code;
    return std::span<const std::uint8_t>(string_).subspan(begin);
  }

 private:
  static constexpr int kMostBits = 12, kTableSize = 1 << kMostBits;

  void restart() {
    next_ = (1 << pixel_bits_) + 2;
    code_bits_ = pixel_bits_ + 1;
    last_ = -1;
  }
  void define() {
    if (next_ >= kTableSize) return;
    pixel_[static_cast<std::size_t>(next_)] = first_pixel_;
    prefix_[static_cast<std::size_t>(next_)] = static_cast<std::uint16_t>(last_);
    if (next_ == (1 << code_bits_) - 1 && code_bits_ < kMostBits) ++code_bits_;
    ++next_;
  }

  CodeReader codes_;
  int pixel_bits_, code_bits_ = 0;
  int next_ = 0;   // the code that the next string gets
  int last_ = -1;  // the code before, -1 behind a clear mark
  std::uint8_t first_pixel_ = 0;
  std::array<std::uint8_t, kTableSize> pixel_{};
  std::array<std::uint16_t, kTableSize> prefix_{};
  std::array<std::uint8_t, kTableSize + 1> string_{};  // filled from the right
};

struct Frame {
  int left = 0, top = 0, width = 0, height = 0;
  bool interlaced = false;
  std::optional<Palette> palette;
};

// Up to the description of the first frame; `transparent` gets its transparent colour, if any.
Frame find_frame(Reader& reader, std::optional<int>& transparent) {
  for (;;) {
    switch (reader.byte()) {
      case ';': fail(kFormat, "no picture inside");
      case '!': {
        const int label = reader.byte();
        const Bytes block = reader.block();
        if (label == 0xfe) {
          if (!block.empty()) reader.skip_blocks();
          break;
        }
        if (label == 0xf9 && !block.empty()) {
          const bool has_transparent = at(block, 0) & 1;
          if (block.size() < (has_transparent ? 4U : 3U)) fail(kFormat, "broken");
          if (has_transparent) transparent = at(block, 3);
        }
        if (label == 0xff && starts_with(block, "NETSCAPE2.0")) reader.block();
        reader.skip_blocks();
        break;
      }
      case ',': {
        const Bytes s = reader.take(9);
        Frame frame{word(s, 0), word(s, 2), word(s, 4), word(s, 6), (at(s, 8) & 64) != 0, {}};
        if (at(s, 8) & 128) frame.palette = read_palette(reader, at(s, 8));
        return frame;
      }
      default: break;  // junk between blocks
    }
  }
}

}  // namespace

void decode_gif(Bytes file, Canvas canvas) {
  Reader reader(file);
  const Bytes screen = reader.take(13);
  std::optional<Palette> palette;
  if (at(screen, 10) & 128) palette = read_palette(reader, at(screen, 10));
  std::optional<int> transparent;
  const Frame frame = find_frame(reader, transparent);
  if (frame.palette) palette = frame.palette;
  const Palette colours = palette ? *palette : gray_ramp();

  if (frame.width == 0 || frame.height == 0) fail(kFormat, "no pixels");
  // A frame that sticks out makes the screen larger.
  Image& out = canvas.set_size(kFormat, std::max(word(screen, 6), frame.left + frame.width),
                               std::max(word(screen, 8), frame.top + frame.height));
  if (frame.width != out.width || frame.height != out.height)
    fill(out, colours[static_cast<std::size_t>(transparent.value_or(0))]);

  LzwReader pixels(reader, reader.byte());
  FrameCursor cursor(frame.width, frame.height, frame.interlaced);
  for (;;) {
    for (const std::uint8_t pixel : pixels.next()) {
      const auto row = static_cast<std::size_t>(std::int64_t{frame.top} + cursor.y());
      const auto column = static_cast<std::size_t>(std::int64_t{frame.left} + cursor.x());
      std::memcpy(&out.rgb[3 * (row * static_cast<std::size_t>(out.width) + column)],
                  colours[pixel].data(), 3);
      if (!cursor.advance()) return;
    }
  }
}

}  // namespace floe::image
