// PNG: zlib inflates, the rest is here. Pillow's reader is its own too, and libpng differs from it:
// in the checksums it insists on, in data that ends early, in limits of metadata.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "floe/core/error.h"
#include "floe/image/png_chunks.h"

namespace floe::image {
namespace {

constexpr std::string_view kFormat = "png";

int samples_per_pixel(int colour_type) {
  switch (colour_type) {
    case 2: return 3;
    case 4: return 2;
    case 6: return 4;
    default: return 1;
  }
}

// Undoes the filter of a row; both rows begin with the filter's number.
void unfilter(std::uint8_t* row, const std::uint8_t* above, std::size_t size, std::size_t pixel) {
  const auto left = [&](std::size_t i) { return i > pixel ? row[i - pixel] : 0; };
  const auto above_left = [&](std::size_t i) { return i > pixel ? above[i - pixel] : 0; };
  switch (row[0]) {
    case 0: return;
    case 1:
      for (std::size_t i = 1 + pixel; i <= size; ++i)
        row[i] = static_cast<std::uint8_t>(row[i] + row[i - pixel]);
      return;
    case 2:
      for (std::size_t i = 1; i <= size; ++i) row[i] = static_cast<std::uint8_t>(row[i] + above[i]);
      return;
    case 3:
      for (std::size_t i = 1; i <= size; ++i)
        row[i] = static_cast<std::uint8_t>(row[i] + (left(i) + above[i]) / 2);
      return;
    case 4:
      for (std::size_t i = 1; i <= size; ++i) {
        const int a = left(i), b = above[i], c = above_left(i);
        const int to_a = std::abs(b - c), to_b = std::abs(a - c), to_c = std::abs(a + b - 2 * c);
        const int nearest = to_a <= to_b && to_a <= to_c ? a : to_b <= to_c ? b : c;
        row[i] = static_cast<std::uint8_t>(row[i] + nearest);
      }
      return;
    default: fail(kFormat, "unknown filter");
  }
}

// Writes pixels of a row, `step` pixels apart, as RGB.
class Unpacker {
 public:
  explicit Unpacker(const PngHeader& header) : header_(header) {}

  void operator()(const std::uint8_t* in, std::int64_t count, std::uint8_t* out,
                  std::ptrdiff_t step) const {
    const bool wide = header_.bit_depth == 16;
    switch (header_.colour_type) {
      case 0:
        if (wide)
          each(count, out, step, [&](std::int64_t i, std::uint8_t* rgb) {
            // Clipped, not scaled.
            gray(rgb, in[2 * i] ? 255 : in[2 * i + 1]);
          });
        else
          each(count, out, step, [&](std::int64_t i, std::uint8_t* rgb) {
            gray(rgb, sample(in, i) * 255 / ((1 << header_.bit_depth) - 1));
          });
        return;
      case 3:
        each(count, out, step, [&](std::int64_t i, std::uint8_t* rgb) {
          std::memcpy(rgb, header_.palette[static_cast<std::size_t>(sample(in, i))].data(), 3);
        });
        return;
      case 4: {
        const std::int64_t size = wide ? 4 : 2;
        each(count, out, step, [&](std::int64_t i, std::uint8_t* rgb) { gray(rgb, in[size * i]); });
        return;
      }
      default: {
        const std::int64_t width = wide ? 2 : 1;
        const std::int64_t size = width * samples_per_pixel(header_.colour_type);
        each(count, out, step, [&](std::int64_t i, std::uint8_t* rgb) {
          for (int c = 0; c < 3; ++c)
            rgb[c] = in[size * i + width * c];  // the upper byte of 16 bits
        });
        return;
      }
    }
  }

 private:
  template <class Put>
  static void each(std::int64_t count, std::uint8_t* out, std::ptrdiff_t step, Put put) {
    for (std::int64_t i = 0; i < count; ++i, out += 3 * step) put(i, out);
  }
  static void gray(std::uint8_t* rgb, int level) {
    rgb[0] = rgb[1] = rgb[2] = static_cast<std::uint8_t>(level);
  }
  // A sample of 1 to 8 bits.
  int sample(const std::uint8_t* in, std::int64_t i) const {
    const int bits = header_.bit_depth;
    const std::int64_t bit = i * bits;
    return in[bit / 8] >> (8 - bits - bit % 8) & ((1 << bits) - 1);
  }

  const PngHeader& header_;
};

// The rows of a picture in the order in which they are stored: all of them, or seven coarse grids.
class Rows {
 public:
  explicit Rows(const PngHeader& header)
      : width_(header.frame.width), height_(header.frame.height), interlaced_(header.interlaced) {}

  struct Row {
    std::int64_t y, x, step, count;
  };
  Row row() const {
    if (!interlaced_) return {y_, 0, 1, width_};
    const Grid& grid = kGrids[pass_];
    return {y_, grid.x, grid.step_x, (width_ - grid.x + grid.step_x - 1) / grid.step_x};
  }
  // To the next row; `new_grid` says that nothing lies above it. False behind the last.
  bool advance(bool& new_grid) {
    new_grid = false;
    y_ += interlaced_ ? kGrids[pass_].step_y : 1;
    if (!interlaced_) return y_ < height_;
    while (y_ >= height_ || row().count <= 0) {
      if (++pass_ == kGrids.size()) return false;
      y_ = kGrids[pass_].y;
      new_grid = true;
    }
    return true;
  }

 private:
  struct Grid {
    std::int64_t x, y, step_x, step_y;
  };
  static constexpr std::array<Grid, 7> kGrids{{{0, 0, 8, 8},
                                               {4, 0, 8, 8},
                                               {0, 4, 4, 8},
                                               {2, 0, 4, 4},
                                               {0, 2, 2, 4},
                                               {1, 0, 2, 2},
                                               {0, 1, 1, 2}}};
  std::int64_t width_, height_;
  bool interlaced_;
  std::size_t pass_ = 0;
  std::int64_t y_ = 0;
};

class Inflater {
 public:
  Inflater() {
    if (inflateInit(&stream_) != Z_OK) fail(kFormat, "out of memory");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  bool has_input() const { return stream_.avail_in > 0; }
  void give(Bytes bytes) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
  }
  // Fills as much of `out` as the input allows and returns how much that was.
  std::size_t take(std::span<std::uint8_t> out) {
    stream_.next_out = out.data();
    stream_.avail_out = static_cast<uInt>(out.size());
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status < 0 || status == Z_NEED_DICT) fail(kFormat, "broken");
    at_end_ = status == Z_STREAM_END;
    return out.size() - stream_.avail_out;
  }
  bool at_end() const { return at_end_; }

 private:
  z_stream stream_{};
  bool at_end_ = false;
};

void read_pixels(PngChunks& chunks, const PngHeader& header, Image& out) {
  const int bits = header.bit_depth * samples_per_pixel(header.colour_type);
  const std::size_t pixel_bytes = static_cast<std::size_t>((bits + 7) / 8);
  const auto row_bytes = [&](std::int64_t count) {
    return static_cast<std::size_t>((count * bits + 7) / 8);
  };
  // One byte in front for the number of the filter.
  std::vector<std::uint8_t> row(1 + row_bytes(header.frame.width)), above(row.size());
  const Unpacker unpack(header);
  Inflater inflater;
  Rows rows(header);
  std::size_t have = 0;
  for (;;) {
    inflater.give(chunks.data());
    while (inflater.has_input()) {
      const auto [y, x, step, count] = rows.row();
      const std::size_t need = 1 + row_bytes(count);
      have += inflater.take(std::span(row).subspan(have, need - have));
      if (have < need) break;
      unfilter(row.data(), above.data(), need - 1, pixel_bytes);
      std::int64_t at = y * out.width + x;
      if (!header.interlaced) at += header.frame.top * out.width + header.frame.left;
      unpack(row.data() + 1, count, &out.rgb[static_cast<std::size_t>(3 * at)], step);
      bool new_grid = false;
      // Data that ends behind a whole row is enough for Pillow; the rest stays black.
      if (!rows.advance(new_grid) || inflater.at_end()) return;
      if (new_grid) std::fill(row.begin(), row.end(), std::uint8_t{0});
      std::swap(row, above);
      have = 0;
    }
  }
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

void decode_png(Bytes file, Canvas canvas) {
  PngChunks chunks(file);
  const PngHeader header = chunks.header();
  Image& out = canvas.set_size(kFormat, header.width, header.height);
  if (header.frame.width <= 0 || header.frame.height <= 0) fail(kFormat, "no pixels");
  // What the data does not reach is sample 0.
  fill(out, header.colour_type == 3 ? header.palette[0] : Colour{});
  read_pixels(chunks, header, out);
  chunks.finish();
}

std::vector<std::byte> encode_png(const Image& image) {
  check_encodable(image, 1 << 24);
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
