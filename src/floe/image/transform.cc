#include "floe/image/transform.h"

#include <cmath>
#include <cstring>

#include "floe/core/error.h"
#include "floe/image/resample.h"

namespace floe::image {
namespace {

// Kept from picture to picture, so that threads do not allocate.
struct Scratch {
  Weights across, down;
  std::vector<std::uint8_t> between;
};

// round((size - crop) / 2), halves to even.
std::int64_t crop_offset(std::int64_t size, int crop) {
  return std::llrint(static_cast<double>(size - crop) / 2.0);
}

}  // namespace

Transform::Transform(const TransformOptions& options, Isa isa) : size_(options.size), isa_(isa) {
  require(is_supported(isa), "this processor has no ", name_of(isa));
  require<ConfigError>(size_ >= 1 && size_ <= 8192, "the size of pictures must be 1 to 8192, got ",
                       size_);
  for (std::size_t c = 0; c < 3; ++c) {
    require<ConfigError>(options.std[c] > 0, "the std of pictures must be positive, got ",
                         options.std[c]);
    for (int byte = 0; byte < 256; ++byte)
      table_[c][static_cast<std::size_t>(byte)] =
          (static_cast<float>(byte) / 255.0F - options.mean[c]) / options.std[c];
  }
}

void Transform::crop(const Image& image, std::uint8_t* out_hwc) const {
  const std::size_t in_stride = std::size_t{3} * static_cast<std::size_t>(image.width);
  require<DataError>(image.width > 0 && image.height > 0 &&
                         image.rgb.size() == in_stride * static_cast<std::size_t>(image.height),
                     "image: no pixels");
  const std::int64_t shorter = std::min(image.width, image.height);
  const auto resized = [&](std::int64_t side) {
    return static_cast<std::int64_t>(static_cast<double>(size_ * side) /
                                     static_cast<double>(shorter));
  };
  const std::int64_t width = resized(image.width), height = resized(image.height);
  const std::int64_t left = crop_offset(width, size_), top = crop_offset(height, size_);
  const std::size_t out_stride = std::size_t{3} * static_cast<std::size_t>(size_);

  thread_local Scratch scratch;
  Weights &across = scratch.across, &down = scratch.down;
  if (width != image.width) across.compute(image.width, width, left, size_);
  if (height != image.height) down.compute(image.height, height, top, size_);

  // Rows [first, first + num_rows) of `in`, resized across and cropped, to `out`.
  const auto resize_across = [&](const Rows& in, std::int64_t first, int num_rows,
                                 std::uint8_t* out) {
    const std::uint8_t* row = in.data + in.stride * static_cast<std::size_t>(first);
    if (width != image.width)
      return resample_across(across, {row, in.stride, in.end}, num_rows, out, isa_);
    for (int y = 0; y < num_rows; ++y, row += in.stride, out += out_stride)
      std::memcpy(out, row + 3 * left, out_stride);
  };
  const Rows pixels{image.rgb.data(), in_stride, image.rgb.data() + image.rgb.size()};
  if (height == image.height) return resize_across(pixels, top, size_, out_hwc);

  std::vector<std::uint8_t>& between = scratch.between;
  // Pillow resizes very tall pictures downwards first, with other roundings.
  if (image.height > 100 * std::int64_t{image.width} && height < image.height) {
    between.resize(in_stride * static_cast<std::size_t>(size_));
    resample_down(down, pixels, 0, between.data(), isa_);
    resize_across({between.data(), in_stride, between.data() + between.size()}, 0, size_, out_hwc);
    return;
  }
  const int num_rows = down.end() - down.begin();
  between.resize(out_stride * static_cast<std::size_t>(num_rows));
  resize_across(pixels, down.begin(), num_rows, between.data());
  resample_down(down, {between.data(), out_stride, between.data() + between.size()}, down.begin(),
                out_hwc, isa_);
}

void Transform::normalise(const std::uint8_t* crop_hwc, float* out_chw, bool flip) const {
  const std::ptrdiff_t size = size_;
  for (std::ptrdiff_t y = 0; y < size; ++y) {
    const std::uint8_t* in = crop_hwc + 3 * size * y;
    for (std::ptrdiff_t c = 0; c < 3; ++c) {
      const auto& table = table_[static_cast<std::size_t>(c)];
      float* out = out_chw + (c * size + y) * size;
      if (flip)
        for (std::ptrdiff_t x = 0; x < size; ++x) out[size - 1 - x] = table[in[3 * x + c]];
      else
        for (std::ptrdiff_t x = 0; x < size; ++x) out[x] = table[in[3 * x + c]];
    }
  }
}

}  // namespace floe::image
