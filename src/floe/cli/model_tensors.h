// A whole model as the tensors of the file that `floe export` would write: a Flamingo under OpenFlamingo's
// names, a language model under Hugging Face's, adapters merged.
#pragma once

#include <memory>

#include "floe/cli/used_model.h"
#include "floe/io/tensor_source.h"

namespace floe::cli {

// Keeps the tensor that was read last, whole; nothing else is held.
std::shared_ptr<const TensorSource> model_tensors(const UsedModel& used);

// The weights of a model that was built, with those that are in no file as a run of this seed begins them.
std::shared_ptr<const TensorSource> with_new_ones(const models::BuiltModel& built,
                                                  std::uint64_t seed);

}  // namespace floe::cli
