// Writing the file .metadata of a directory of torch.distributed.checkpoint.
#pragma once

#include <string>

#include "floe/io/dcp_metadata.h"

namespace floe {

// The bytes of the file, for torch 2.3 and later. Tensors must have a dtype; two tensors may share
// their places (tied weights).
std::string write_dcp_metadata(const DcpMetadata& metadata);

}  // namespace floe
