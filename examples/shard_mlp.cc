// Shard an MLP whose first half is frozen.
//   floe launch -n 2 --exec build/release/bin/shard_mlp
#include <ATen/ATen.h>

#include <cstdio>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/nn/layers.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"

using namespace floe;

struct Block : nn::Module {
  explicit Block(int64_t dim) {
    up = child<nn::Linear>("up", dim, 4 * dim);
    down = child<nn::Linear>("down", 4 * dim, dim);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(x))); }
  nn::Ptr<nn::Linear> up, down;
};

struct Mlp : nn::Module {
  Mlp() {
    blocks = child<nn::List<Block>>("blocks");
    for (int i = 0; i < 8; ++i) blocks->add(256);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = block(x);
    return x;
  }
  nn::Ptr<nn::List<Block>> blocks;
};

int main() {
  auto world = comm::World::join();      // floe launch, torchrun, srun, mpirun, or alone
  auto model = std::make_shared<Mlp>();  // no memory yet
  shard::ShardOptions options;
  options.world = world;
  options.trainable = {{"blocks.[4-7].*"}};
  auto engine = shard::fully_shard(model, {.units = {"Block"}}, options);
  optim::AdamW optimizer(*engine, {});

  at::manual_seed(static_cast<uint64_t>(world->rank()));
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor x = at::randn({32, 256}, world->device());
    const at::Tensor loss = at::mse_loss(nn::call(*model, x), at::roll(x, 1, 1));
    loss.backward();
    const auto all = engine->agree(/*locally_finite=*/true, {}, loss);
    if (all.finite) optimizer.step(1e-3);
    engine->clear_gradients();
    if (world->rank() == 0 && step % 5 == 0)
      std::printf("step %2d  loss %.4f\n", step, all.sums[0] / world->size());
  }
  const std::string held = format_bytes(engine->held().between_steps());
  std::printf("rank %d holds %s between steps\n", world->rank(), held.c_str());
}
