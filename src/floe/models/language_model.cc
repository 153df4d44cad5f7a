#include "floe/models/language_model.h"

#include <ATen/ATen.h>

namespace floe::models {

std::tuple<at::Tensor, at::Tensor> training_loss(LanguageModel& model,
                                                 const std::shared_ptr<const ModelInput>& input) {
  return nn::call_through(model.module(), [&model, input] {
    const at::Tensor hidden = model.hidden(*input, {}, nullptr).index_select(0, input->predictors);
    const auto [loss, of_token] =
        model.loss(hidden, input->targets, input->target_weights, input->z_loss);
    const auto sources = static_cast<std::int64_t>(input->labels_of_source.size());
    // The last place is for those that are of no source.
    const at::Tensor sums = at::zeros({sources + 1}, of_token.options())
                                .index_add_(0, input->target_sources, of_token.detach());
    return std::make_tuple(loss, sums.narrow(0, 0, sources));
  });
}

at::Tensor all_logits(LanguageModel& model, const std::shared_ptr<const ModelInput>& input,
                      Stages* stages) {
  return nn::call_through(model.module(), [&model, input, stages] {
    return model.logits(model.hidden(*input, {}, stages));
  });
}

}  // namespace floe::models
