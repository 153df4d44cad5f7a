#include "floe/train/pass.h"

namespace floe::train {

PassLosses run_pass(models::LanguageModel& model,
                    const std::shared_ptr<const models::ModelInput>& input,
                    const std::function<void()>& after_forward) {
  const auto [loss, of_source] = models::training_loss(model, input);
  if (after_forward) after_forward();
  loss.backward();
  return {loss.detach(), of_source};
}

}  // namespace floe::train
