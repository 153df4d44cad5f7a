// Images in a file of tensors, under the names that OpenFlamingo gives them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "floe/io/tensor_source.h"

namespace floe::cli {

// `vision_x` (float) or `vision_x_i8` (int8, divided by 64), [B, images, 1, 3, H, W], as
// [B, images, 3, H, W] fp32; undefined when there is neither. `path` is for messages.
at::Tensor read_image_tensors(const TensorSource& inputs, const std::string& path);

}  // namespace floe::cli
