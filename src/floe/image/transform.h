// The evaluation transform of CLIP, byte for byte as Pillow, torchvision and open_clip compute it:
// short side to `size` (bicubic, antialiased), centre crop, float, normalise.
//
//   const Transform transform;
//   std::vector<std::uint8_t> crop(transform.crop_bytes());
//   transform.crop(image, crop.data());
//   transform.normalise(crop.data(), tensor, /*flip=*/false);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "floe/image/image.h"
#include "floe/image/resample.h"

namespace floe::image {

struct TransformOptions {
  int size = 224;
  // Of red, green and blue; those of OpenAI's CLIP.
  std::array<float, 3> mean{0.48145466F, 0.4578275F, 0.40821073F};
  std::array<float, 3> std{0.26862954F, 0.26130258F, 0.27577711F};
};

class Transform {
 public:
  explicit Transform(const TransformOptions& options = {}, Isa isa = best_isa());

  int size() const { return size_; }
  // Bytes of one crop, which is also the number of floats of one tensor.
  std::size_t crop_bytes() const { return std::size_t{3} * size_ * size_; }

  // Resizes and crops to [size, size, 3] bytes. Only what the crop shows is computed. Throws
  // DataError when the picture is empty.
  void crop(const Image& image, std::uint8_t* out_hwc) const;
  // [size, size, 3] bytes to [3, size, size] floats: (u8 / 255 - mean) / std. `flip` mirrors left
  // and right.
  void normalise(const std::uint8_t* crop_hwc, float* out_chw, bool flip) const;

  // Both are thread-safe.

 private:
  int size_;
  Isa isa_;
  std::array<std::array<float, 256>, 3> table_;  // per channel: the float of each byte
};

}  // namespace floe::image
