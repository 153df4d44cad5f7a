// Opening weights of any kind that floe reads; docs/files.md lists them.
#pragma once

#include <memory>
#include <string>

#include "floe/io/tensor_source.h"

namespace floe {

// A file (safetensors; or of torch.save or torch.jit.save, told by its content), an index of shards
// (*.json), a directory of torch.distributed.checkpoint (dcp_directory.h), or a Hugging Face folder
// (hf_folder.h). Throws DataError for anything else.
std::unique_ptr<TensorSource> open_tensors(const std::string& path);

}  // namespace floe
