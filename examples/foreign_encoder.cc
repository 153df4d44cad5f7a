// Shard modules that floe has not written: torch::nn's own.
//
// Layers you make yourself become units with one word, nn::Hooked<...>. A closed container such as
// torch::nn::TransformerEncoder clones its layers itself; there the engine watches operators
// instead (see Note [Watching operators] for what that costs).
//   floe launch -n 2 --exec build/release/bin/foreign_encoder
#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <cstdio>

#include "floe/comm/world.h"
#include "floe/nn/call.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"

using namespace floe;

namespace {

torch::nn::TransformerEncoderLayerOptions layer_options() {
  return torch::nn::TransformerEncoderLayerOptions(64, 4).dim_feedforward(256).dropout(0.0);
}

// Trains a few steps; `forward` calls the model.
template <class Forward>
void train(const char* title, const std::shared_ptr<comm::World>& world, shard::Engine& engine,
           Forward forward) {
  optim::AdamW optimizer(engine, {});
  at::manual_seed(static_cast<uint64_t>(world->rank()));
  for (int step = 1; step <= 10; ++step) {
    const at::Tensor x = at::randn({16, 4, 64}, world->device());
    const at::Tensor loss = at::mse_loss(forward(x), x.flip(0));
    loss.backward();
    const auto all = engine.agree(/*locally_finite=*/true, {}, loss);
    optimizer.step(1e-3);
    engine.clear_gradients();
    if (world->rank() == 0 && step % 5 == 0)
      std::printf("%s: step %2d  loss %.4f\n", title, step, all.sums[0] / world->size());
  }
}

}  // namespace

int main() {
  auto world = comm::World::join();
  shard::ShardOptions options;
  options.world = world;

  {                      // One word per unit.
    at::manual_seed(0);  // foreign modules draw their own first values: all ranks the same
    torch::nn::Sequential model;
    for (int i = 0; i < 4; ++i)
      model->push_back(
          std::make_shared<nn::Hooked<torch::nn::TransformerEncoderLayerImpl>>(layer_options()));
    options.trainable = {{"2.*", "3.*"}};
    auto engine = shard::fully_shard(model.ptr(), {.units = {"TransformerEncoderLayer"}}, options);
    train("hooked layers   ", world, *engine, [&](const at::Tensor& x) {
      at::Tensor y = x;
      for (auto& layer : *model) y = layer.forward(y, at::Tensor(), at::Tensor());
      return y;
    });
  }
  {  // A closed container, by watching operators.
    at::manual_seed(0);
    torch::nn::TransformerEncoder model(torch::nn::TransformerEncoderOptions(
        torch::nn::TransformerEncoderLayer(layer_options()), 4));
    options.trainable = {{"layers.2.*", "layers.3.*"}};
    options.watch_operators = true;
    auto engine = shard::fully_shard(model.ptr(), {.units = {"TransformerEncoderLayer"}}, options);
    train("closed container", world, *engine,
          [&](const at::Tensor& x) { return model->forward(x); });
  }
}
