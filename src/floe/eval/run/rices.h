// Contexts by similarity (RICES): the training samples whose pictures are most like the one that is
// asked, by the pooled output of the model's own image tower.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "floe/requests/work.h"

namespace floe::eval {

// Of each picture, a row of length 1, fp32 on the CPU, [pictures, D]; zeros for one that cannot be
// read, which is logged. Throws ConfigError for a model without an image tower.
at::Tensor image_features(const requests::ReadyModel& model,
                          const std::vector<std::string>& pictures);

// For each row of `asked` the `count` rows of `known` that are most similar, the most similar last:
// it stands next to what is asked.
std::vector<std::vector<std::size_t>> most_similar(const at::Tensor& asked, const at::Tensor& known,
                                                   std::size_t count);

}  // namespace floe::eval
