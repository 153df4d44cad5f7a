// Training from weights that a file has, with batches that follow from the step's number: what
// another program does with the same weights and batches can be compared with it, loss by loss.
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "flamingo_job.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/kernels/kernels.h"
#include "floe/models/model_input.h"
#include "floe/nn/module.h"
#include "floe/optim/optimizers/adamw.h"
#include "h200_tasks.h"

namespace floe::bench {
namespace {

class CurveJob {
 public:
  explicit CurveJob(const Json& config)
      : config_(config),
        weights_(open_tensors(config.at("weights"))),
        model_(std::make_shared<models::Flamingo>(flamingo_spec(config.at("model")))) {
    kernels::allow(!config.value("plain", false));
    nn::set_trainable(*model_, model_->trained_by_default());
    // The image tower's last norm is not used: tokens are taken from before it.
    for (const auto& parameter : nn::named_parameters(*model_))
      require<ConfigError>(weights_->find(parameter.name) != nullptr ||
                               glob_match("vision_encoder.ln_post.*", parameter.name),
                           config.at("weights").dump(), " has no ", parameter.name);
    shard::ShardOptions options = flamingo_sharding(config);
    options.source = weights_.get();
    engine_ = shard::fully_shard(model_, units_of(config.at("model")), options);
  }

  shard::Engine& engine() { return *engine_; }
  models::Flamingo& model() { return *model_; }

  // Leaves gradients behind.
  double forward_backward(std::int64_t step) {
    const PackedBatch batch = flamingo_batch(config_, step);
    tokens_sum_ += batch.ids.sum().item<std::int64_t>();
    const auto input = models::prepare(*model_, batch, flamingo_input_options(config_));
    const at::Tensor loss = std::get<0>(models::training_loss(*model_, input));
    loss.backward();
    return loss.item<double>();
  }
  // Of all ids so far: tells batches that differ.
  std::int64_t tokens_sum() const { return tokens_sum_; }

 private:
  const Json& config_;
  std::shared_ptr<const TensorSource> weights_;
  std::shared_ptr<models::Flamingo> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::int64_t tokens_sum_ = 0;
};

}  // namespace

Json train_curve(const Json& config) {
  CurveJob job(config);
  optim::AdamW optimizer(job.engine(), {.decay = {.weight_decay = 0.1}});
  std::vector<double> losses, norms;
  std::int64_t step = 0;
  for (const double lr : config.at("lrs")) {
    losses.push_back(job.forward_backward(step++));
    const auto agreement = job.engine().agree();
    require(agreement.finite, "a gradient of step ", step - 1, " is not finite");
    norms.push_back(agreement.gradient_norm);
    optimizer.step(lr, optim::clip_factor(agreement.gradient_norm, 1.0));
    job.engine().clear_gradients();
  }
  return {{"losses", losses}, {"gradient_norms", norms}, {"tokens_sum", job.tokens_sum()}};
}

Json repeat_gradients(const Json& config) {
  CurveJob job(config);
  Json runs = Json::array();
  for (std::int64_t run = 0; run < config.at("repeats"); ++run) {
    const double loss = job.forward_backward(0);
    const double norm = job.engine().agree().gradient_norm;
    Json gates = Json::object();
    for (const auto& parameter : nn::named_parameters(job.model()))
      if (glob_match("*_gate", parameter.name))
        gates[parameter.name] = job.engine().full_gradient(parameter.name).item<double>();
    runs.push_back({{"loss", loss}, {"gradient_norm", norm}, {"gates", gates}});
    job.engine().clear_gradients();
  }
  return {{"runs", runs}, {"tokens_sum", job.tokens_sum()}};
}

}  // namespace floe::bench
