// Weights under their own names, whatever a trainer wrapped around them: the part of a training state
// that they lie in (training_state.h; `state_dict.model.` of Lightning), `module.` of data
// parallelism, and the marks that FSDP, activation checkpointing and compilation leave in names.
#pragma once

#include <memory>
#include <string>

#include "floe/io/tensor_source.h"

namespace floe::models {

// What lies beside the state dict of a checkpoint (the optimizer's moments) is left out. Throws
// DataError, naming `path`, when two tensors come to have one name.
std::shared_ptr<const TensorSource> unwrapped(std::shared_ptr<const TensorSource> source,
                                              const std::string& path);

}  // namespace floe::models
