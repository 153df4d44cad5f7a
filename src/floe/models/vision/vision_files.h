// The image tower's files: what kind they are, and where they have each of our parameters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "floe/io/tensors/tensor_source.h"
#include "floe/models/vision/clip_vision.h"

namespace floe::models {

// Whose names a file has.
enum class VisionNames { open_clip, hugging_face };

struct VisionFiles {
  VisionSpec spec;
  VisionNames names = VisionNames::open_clip;
  std::string prefix;                          // before every name of the tower
  std::shared_ptr<const TensorSource> source;  // null when the folder has only a configuration
  std::string path;                            // for messages
};

// `path`: a folder of open_clip (open_clip_config.json) or Hugging Face (config.json of CLIPModel
// or CLIPVisionModel), or one file of weights; OpenAI's archives need no configuration. Throws
// ConfigError or DataError.
VisionFiles open_vision(const std::string& path);

// Where a file has a parameter of VisionTransformer: several names are laid one after the other.
struct VisionTensor {
  std::vector<std::string> names;
  bool transposed = false;
};
VisionTensor vision_tensor(VisionNames names, const std::string& prefix,
                           const std::string& parameter);
// "visual." or "vision_model."
std::string usual_prefix(VisionNames names);

}  // namespace floe::models
