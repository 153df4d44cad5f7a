// Writing a list of SavedTensor to files, tensor by tensor.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/models/weights/save.h"

namespace floe::models {

// The type that a tensor gets in the file.
DType saved_dtype(const SavedTensor& tensor, const SaveOptions& options);

// What comes first on the rank that writes: making folders, writing configurations.
using Preparation = std::function<void()>;

// Each fetches every parameter, on all ranks in the same order, and writes where options.write is set.
// Errors of `prepare` and of writing are thrown at the end (save.h tells why).

// One safetensors file, or one of torch.save with a bare state dict.
void write_safetensors(const std::vector<SavedTensor>& tensors, const std::string& path,
                       const WholeParameter& whole, const SaveOptions& options,
                       const Preparation& prepare = {});
void write_torch_file(const std::vector<SavedTensor>& tensors, const std::string& path,
                      const WholeParameter& whole, const SaveOptions& options,
                      const Preparation& prepare = {});
// model.safetensors, or model-00001-of-0000N.safetensors and the index, which is written last.
void write_shards(const std::vector<SavedTensor>& tensors, const std::string& folder,
                  const WholeParameter& whole, const SaveOptions& options,
                  const Preparation& prepare = {});

}  // namespace floe::models
