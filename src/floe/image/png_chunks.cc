#include "floe/image/png_chunks.h"

#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cstring>

namespace floe::image {
namespace {

constexpr std::string_view kFormat = "png";
constexpr std::size_t kMostText = std::size_t{1} << 20;  // of one text or profile, decompressed
constexpr std::size_t kMostTexts = 64 * kMostText;
constexpr std::size_t kMostPiece = 65536;

std::uint32_t word(Bytes bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
  return value;
}

int at(Bytes bytes, std::size_t i) { return std::to_integer<int>(bytes[i]); }

// Splits at the first zero; without one everything is in front.
std::pair<Bytes, std::optional<Bytes>> split(Bytes bytes) {
  const auto zero = std::find(bytes.begin(), bytes.end(), std::byte{0});
  const auto length = static_cast<std::size_t>(zero - bytes.begin());
  if (zero == bytes.end()) return {bytes, std::nullopt};
  return {bytes.first(length), bytes.subspan(length + 1)};
}

// The decompressed size up to a little more than `most`; nothing when the stream is broken.
std::optional<std::size_t> inflated_size(Bytes bytes, std::size_t most) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) fail(kFormat, "out of memory");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::array<Bytef, 4096> out;
  std::size_t size = 0;
  int status = Z_OK;
  while (status == Z_OK && size <= most) {
    stream.next_out = out.data();
    stream.avail_out = out.size();
    status = inflate(&stream, Z_NO_FLUSH);
    size += out.size() - stream.avail_out;
  }
  inflateEnd(&stream);
  if (status == Z_DATA_ERROR || status == Z_NEED_DICT) return std::nullopt;
  return size;
}

bool is_known_mode(int bit_depth, int colour_type) {
  switch (colour_type) {
    case 0:
      return bit_depth == 1 || bit_depth == 2 || bit_depth == 4 || bit_depth == 8 ||
             bit_depth == 16;
    case 3: return bit_depth == 1 || bit_depth == 2 || bit_depth == 4 || bit_depth == 8;
    case 2:
    case 4:
    case 6: return bit_depth == 8 || bit_depth == 16;
    default: return false;
  }
}

}  // namespace

PngChunks::PngChunks(Bytes file) : rest_(file.subspan(8)) {}

Bytes PngChunks::take(std::size_t count) {
  const Bytes taken = rest_.first(std::min(count, rest_.size()));
  rest_ = rest_.subspan(taken.size());
  return taken;
}

Bytes PngChunks::take_all(std::size_t count) {
  const Bytes taken = take(count);
  if (taken.size() < count) fail(kFormat, "truncated");
  return taken;
}

std::optional<PngChunks::Chunk> PngChunks::next_chunk() {
  const Bytes head = take(8);
  if (head.size() < 8) return std::nullopt;
  for (const std::byte letter : head.subspan(4)) {
    const int c = std::to_integer<int>(letter);
    if (c >= 128 || (!std::isalnum(c) && c != '_')) return std::nullopt;
  }
  return Chunk{head.subspan(4), word(head, 0)};
}

PngHeader PngChunks::header() {
  for (;;) {
    const auto chunk = next_chunk();
    if (!chunk) fail(kFormat, "broken or truncated before the pixels");
    if (chunk->is("IEND")) fail(kFormat, "no pixels");
    const bool frame_data = chunk->is("fdAT");
    if (chunk->is("IDAT") || frame_data) {
      if (!has_header_) fail(kFormat, "no header before the pixels");
      data_left_ = chunk->length;
      if (frame_data) take_frame_number(*chunk);
      break;
    }
    const Bytes data = body(*chunk);
    check_chunk(*chunk, data);
    const auto begin = reinterpret_cast<const Bytef*>(chunk->name.data());
    if (word(take_all(4), 0) != crc32_z(0, begin, 4 + data.size())) fail(kFormat, "wrong checksum");
  }
  if (!has_frame_) header_.frame = {0, 0, header_.width, header_.height};
  // A picture apart from the animation counts as a frame.
  if (num_frames_) is_animated_ = *num_frames_ + (has_frame_ ? 0 : 1) > 1;
  return header_;
}

Bytes PngChunks::data() {
  while (data_left_ == 0) {
    take(4);  // the checksum, which nobody looks at here
    const auto chunk = next_chunk();
    if (!chunk) fail(kFormat, "truncated");
    const bool frame_data = chunk->is("fdAT");
    if (!chunk->is("IDAT") && !chunk->is("DDAT") && !frame_data) fail(kFormat, "truncated");
    data_left_ = chunk->length;
    if (frame_data) take_frame_number(*chunk);
  }
  const auto piece = std::min<std::uint64_t>(data_left_, kMostPiece);
  data_left_ -= piece;
  const Bytes bytes = take(piece);
  if (bytes.empty()) fail(kFormat, "truncated");
  return bytes;
}

void PngChunks::finish() {
  take(data_left_);
  for (;;) {
    take(4);
    const auto chunk = next_chunk();
    if (!chunk || chunk->is("IEND")) break;
    if (chunk->is("fcTL") && is_animated_) break;
    if (chunk->is("fdAT")) {
      take_frame_number(*chunk);
      take_all(data_left_);
      continue;
    }
    const Bytes data = body(*chunk);
    if (!chunk->is("IDAT")) check_chunk(*chunk, data);
  }
  if (has_transparent_colour_ && !has_palette_) fail(kFormat, "no palette");
}

// What a chunk must be like for Pillow to go on, and what it means for the pixels.
void PngChunks::check_chunk(const Chunk& chunk, Bytes body) {
  const auto need = [&](std::size_t bytes) {
    if (body.size() < bytes) fail(kFormat, "broken metadata");
  };
  if (chunk.is("IHDR")) {
    read_header(body);
  } else if (chunk.is("PLTE")) {
    if (header_.colour_type != 3) return;
    const std::size_t num_colours = body.size() / 3;
    if (num_colours > 256) fail(kFormat, "palette of more than 256 colours");
    has_palette_ = true;
    header_.palette = {};
    std::memcpy(header_.palette.data(), body.data(), 3 * num_colours);
  } else if (chunk.is("tRNS")) {
    check_transparency(body);
  } else if (chunk.is("gAMA")) {
    need(4);
  } else if (chunk.is("cHRM")) {
    if (body.size() % 4 != 0) fail(kFormat, "broken metadata");
  } else if (chunk.is("sRGB")) {
    need(1);
  } else if (chunk.is("pHYs")) {
    need(9);
  } else if (chunk.is("iCCP")) {
    const auto [name, profile] = split(body);
    // Without a separator Pillow takes the first byte for the method.
    const Bytes method = profile ? *profile : body;
    if (method.empty() || at(method, 0) != 0) fail(kFormat, "broken metadata");
    check_compressed(method.subspan(1));
  } else if (chunk.is("tEXt")) {
    const auto [key, text] = split(body);
    if (!key.empty() && text) count_text(text->size());
  } else if (chunk.is("zTXt")) {
    const auto [key, text] = split(body);
    if (!text || text->empty()) return;
    if (at(*text, 0) != 0) fail(kFormat, "broken metadata");
    check_compressed(text->subspan(1));
  } else if (chunk.is("iTXt")) {
    const auto [key, flags] = split(body);
    if (!flags || flags->size() < 2) return;
    const auto [language, translated] = split(flags->subspan(2));
    if (!translated) return;
    const auto [translated_key, text] = split(*translated);
    if (!text) return;
    if (at(*flags, 0) == 0)
      count_text(text->size());
    else if (at(*flags, 1) == 0)
      check_compressed(*text);
  } else if (chunk.is("acTL")) {
    need(8);
    const std::uint32_t count = word(body, 0);
    if (num_frames_)
      num_frames_.reset();
    else if (count != 0 && count <= 0x80000000)
      num_frames_ = count;
  } else if (chunk.is("fcTL")) {
    read_frame_control(body);
  }
}

void PngChunks::check_transparency(Bytes body) {
  const bool gray = header_.colour_type == 0, rgb = header_.colour_type == 2;
  if (body.size() < (gray ? 2U : rgb ? 6U : 0U)) fail(kFormat, "broken metadata");
  if (header_.colour_type == 3) {
    const auto num_opaque = std::count(body.begin(), body.end(), std::byte{255});
    const auto num_transparent = std::count(body.begin(), body.end(), std::byte{0});
    has_transparent_colour_ =
        num_transparent == 1 && num_opaque + 1 == static_cast<std::ptrdiff_t>(body.size());
  }
}

void PngChunks::check_compressed(Bytes zlib) {
  const auto size = inflated_size(zlib, kMostText);
  if (!size) return;  // a broken one is ignored
  if (*size > kMostText) fail(kFormat, "metadata too large");
  count_text(*size);
}

void PngChunks::count_text(std::size_t bytes) {
  text_bytes_ += bytes;
  if (text_bytes_ > kMostTexts) fail(kFormat, "metadata too large");
}

void PngChunks::read_header(Bytes body) {
  if (body.size() < 13) fail(kFormat, "broken header");
  header_.width = word(body, 0);
  header_.height = word(body, 4);
  header_.bit_depth = at(body, 8);
  header_.colour_type = at(body, 9);
  header_.interlaced = at(body, 12) != 0;
  if (!is_known_mode(header_.bit_depth, header_.colour_type) || at(body, 11) != 0)
    fail(kFormat, "broken header");
  has_header_ = true;
}

void PngChunks::read_frame_control(Bytes body) {
  if (body.size() < 26) fail(kFormat, "broken animation");
  read_frame_number(body, true);
  const PngHeader::Rectangle frame{word(body, 12), word(body, 16), word(body, 4), word(body, 8)};
  if (frame.left + frame.width > header_.width || frame.top + frame.height > header_.height)
    fail(kFormat, "broken animation");
  header_.frame = frame;
  has_frame_ = true;
}

void PngChunks::read_frame_number(Bytes body, bool first_is_allowed) {
  const std::uint32_t number = word(body, 0);
  const bool follows = sequence_ ? number == *sequence_ + 1 : first_is_allowed && number == 0;
  if (!follows) fail(kFormat, "broken animation");
  sequence_ = number;
}

// In front of the data of a frame; what remains of the chunk is data.
void PngChunks::take_frame_number(const Chunk& chunk) {
  if (chunk.length < 4) fail(kFormat, "broken animation");
  read_frame_number(take_all(4), false);
  data_left_ = chunk.length - 4;
}

}  // namespace floe::image
