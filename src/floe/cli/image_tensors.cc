#include "floe/cli/image_tensors.h"

#include <ATen/ATen.h>

#include "floe/core/error.h"
#include "floe/nn/load.h"

namespace floe::cli {

at::Tensor read_image_tensors(const TensorSource& inputs, const std::string& path) {
  at::Tensor images;
  if (const TensorInfo* info = inputs.find("vision_x"))
    images = nn::read_tensor(inputs, *info);
  else if (const TensorInfo* small = inputs.find("vision_x_i8"))
    images = nn::read_tensor(inputs, *small).to(at::kFloat) / 64;
  if (!images.defined()) return images;
  require<DataError>(images.dim() == 6 && images.size(2) == 1, path,
                     ": images must have the shape [B, images, 1, 3, H, W] (one frame each), not [",
                     join(images.sizes()), "]");
  return images.squeeze(2).to(at::kFloat);
}

}  // namespace floe::cli
