// Training from weights that a file has, with batches that follow from the step's number: what
// another program does with the same weights and batches can be compared with it, loss by loss.
#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flamingo_job.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/kernels/kernels.h"
#include "floe/models/model_input.h"
#include "floe/nn/init.h"
#include "floe/nn/module.h"
#include "floe/optim/optimizers/adamw.h"
#include "h200_tasks.h"

namespace floe::bench {
namespace {

// What begins at zero, so that nothing behind it has a gradient in the first step, begins
// elsewhere: gates half open, adapters at work.
class OpenedSource final : public TensorSource {
 public:
  explicit OpenedSource(nn::Module& model) {
    for (const auto& parameter : nn::named_parameters(model)) {
      const bool gate = glob_match("*_gate", parameter.name);
      if (!gate && !glob_match("*.lora_B*", parameter.name)) continue;
      const auto sizes = parameter.tensor.sizes();
      tensors_[parameter.name] = {parameter.name, {sizes.begin(), sizes.end()}, DType::f32, {}};
    }
  }
  std::vector<std::string> names() const override { return names_in(tensors_); }
  const TensorInfo* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  void read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            std::span<std::byte> out) const override {
    check_request(tensor, first, count, out);
    const nn::Init init = tensor.numel() == 1 ? nn::Init::constant(0.5) : nn::Init::normal(0.02);
    nn::fill(init, /*seed=*/7, tensor.name, first, at::from_blob(out.data(), {count}, at::kFloat));
  }

 private:
  std::map<std::string, TensorInfo> tensors_;
};

class CurveJob {
 public:
  // From "weights", or without it from random ones that follow from "seed" alone; "opened" says
  // whether those are an OpenedSource's.
  explicit CurveJob(const Json& config)
      : config_(config), model_(language_model(config.at("model"))) {
    kernels::allow(!config.value("plain", false));
    if (config.contains("weights")) {
      weights_ = open_tensors(config.at("weights"));
      // The image tower's last norm is not used: tokens are taken from before it.
      for (const auto& parameter : nn::named_parameters(model_->module()))
        require<ConfigError>(weights_->find(parameter.name) != nullptr ||
                                 glob_match("vision_encoder.ln_post.*", parameter.name),
                             config.at("weights").dump(), " has no ", parameter.name);
    } else if (config.value("opened", false)) {
      weights_ = std::make_shared<OpenedSource>(model_->module());
    }
    shard::ShardOptions options = flamingo_sharding(config);
    options.seed = config.at("seed");
    options.source = weights_.get();
    engine_ =
        shard::fully_shard({model_, &model_->module()}, units_of(config.at("model")), options);
  }

  shard::Engine& engine() { return *engine_; }
  nn::Module& model() { return model_->module(); }

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
  std::shared_ptr<models::LanguageModel> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::int64_t tokens_sum_ = 0;
};

// Which gradients are not finite, in words.
std::string not_finite(CurveJob& job) {
  std::vector<std::string> names;
  std::size_t finite = 0;
  for (const auto& parameter : nn::named_parameters(job.model())) {
    const at::Tensor gradient = job.engine().full_gradient(parameter.name);
    if (!gradient.defined()) continue;
    if (gradient.isfinite().all().item<bool>())
      ++finite;
    else
      names.push_back(parameter.name);
  }
  const std::size_t count = names.size();
  if (count > 4) names.resize(4);
  return str(count, " parameters of ", count + finite, ": ", join(names, ", "));
}

}  // namespace

Json train_curve(const Json& config) {
  CurveJob job(config);
  optim::AdamW optimizer(job.engine(), {.decay = {.weight_decay = 0.1}});
  std::vector<double> losses, norms;
  std::int64_t step = 0;
  for (const double lr : config.at("lrs")) {
    losses.push_back(job.forward_backward(step++));
    const auto agreement = job.engine().agree();
    if (!agreement.finite)
      throw Error(str("the gradient of step ", step - 1, ", whose loss is ", losses.back(),
                      ", is not finite in ", not_finite(job)));
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

namespace {

// Gradients of what trains, by parameter, on the CPU.
std::map<std::string, at::Tensor> gradients_of(const Json& config) {
  CurveJob job(config);
  job.forward_backward(0);
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : nn::named_parameters(job.model()))
    if (const at::Tensor gradient = job.engine().full_gradient(parameter.name); gradient.defined())
      gradients[parameter.name] = gradient.to(at::kCPU, at::kFloat);
  return gradients;
}

// "lang_encoder.gated_cross_attn_layers.3": up to the number that is a layer's.
std::string layer_of(const std::string& name) {
  for (std::size_t at = name.find('.'); at != std::string::npos; at = name.find('.', at + 1)) {
    const std::size_t end = name.find_first_not_of("0123456789", at + 1);
    if (end != at + 1 && end != std::string::npos && name[end] == '.') return name.substr(0, end);
  }
  return name.substr(0, name.find('.'));
}

}  // namespace

Json match_gradients(const Json& config) {
  const auto exact = gradients_of(config.at("exact"));
  Json answer = Json::object();
  for (const auto& [system, changes] : config.at("systems").items()) {
    const auto found = gradients_of(changes);
    struct Sums {
      double dot = 0, exact = 0, found = 0;
    };
    std::map<std::string, Sums> layers;
    for (const auto& [name, gradient] : found) {
      const at::Tensor a = exact.at(name).to(at::kDouble), b = gradient.to(at::kDouble);
      Sums& sums = layers[layer_of(name)];
      sums.dot += (a * b).sum().item<double>();
      sums.exact += a.square().sum().item<double>();
      sums.found += b.square().sum().item<double>();
    }
    for (const auto& [layer, sums] : layers)
      answer[system][layer] = {{"cosine", sums.dot / std::sqrt(sums.exact * sums.found)},
                               {"ratio", std::sqrt(sums.found / sums.exact)}};
  }
  return answer;
}

}  // namespace floe::bench
