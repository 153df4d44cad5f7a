// Forward, loss and backward of one batch.
#pragma once

#include <functional>
#include <memory>

#include "floe/models/language_model.h"

namespace floe::train {

// On the device, without history.
struct PassLosses {
  at::Tensor loss;       // what was differentiated
  at::Tensor of_source;  // [sources] sums of token losses
};

// Gradients add to those that there are. `after_forward` may be empty.
PassLosses run_pass(models::LanguageModel& model,
                    const std::shared_ptr<const models::ModelInput>& input,
                    const std::function<void()>& after_forward = {});

}  // namespace floe::train
