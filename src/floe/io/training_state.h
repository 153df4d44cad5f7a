// Training states: files and directories that hold a model's weights beside other things, such as an
// optimizer's state.
#pragma once

#include <string>
#include <vector>

#include "floe/io/pickle_value.h"
#include "floe/io/tensor_source.h"

namespace floe {

// The keys under which a training state keeps its parts ("model", "optimizer"), as far as they hold
// tensors. Empty for bare weights, and for sources that do not tell (safetensors).
std::vector<std::string> parts_of(const TensorSource& source);

// What stands in front of the weights' names: "model_state_dict.", "state_dict.", "model."; empty for
// bare weights.
//
// A name alone does not tell `model.layers.0` of a state dict from `layers.0` in the part `model`. A
// directory of torch.distributed.checkpoint and a file of torch.save know the difference; for others
// the part `model` is taken for one when an optimizer's state lies beside it.
std::string weights_prefix(const TensorSource& source);

// What a training state says beside its tensors: the value under a key of the file of torch.save, or of
// the file meta.pt that trainers put into a directory; null when there is none.
pickle::Value state_value(const TensorSource& source, const std::string& key);

// True for what a Trainer of Lightning saved.
bool is_of_lightning(const TensorSource& source);

}  // namespace floe
