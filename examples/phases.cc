// Change what trains, at the cost of one set: three situations, each a few lines.
//   1. two layers in turn, each with its own optimizer
//   2. a generator and a discriminator, each with the other as a frozen partner
//   3. staged unfreezing: first the head, then more and more below it
//   floe launch -n 2 --exec build/release/bin/phases
#include <ATen/ATen.h>

#include <cstdio>
#include <functional>
#include <string>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/nn/activations/host_store.h"
#include "floe/nn/layers.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"

using namespace floe;

namespace {

struct Mlp : nn::Module {
  Mlp(int64_t in, int64_t hidden, int64_t out)
      : up(child<nn::Linear>("up", in, hidden)), down(child<nn::Linear>("down", hidden, out)) {}
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  nn::Ptr<nn::Linear> up, down;
};

struct Net : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + layer1(x);
    return head(y + layer2(y));
  }
  nn::Ptr<Mlp> layer1 = child<Mlp>("layer1", 256, 512, 256);
  nn::Ptr<Mlp> layer2 = child<Mlp>("layer2", 256, 2048, 256);
  nn::Ptr<nn::Linear> head = child<nn::Linear>("head", 256, 256);
};

struct Gan : nn::Module {
  nn::Ptr<Mlp> generator = child<Mlp>("generator", 64, 512, 16);
  nn::Ptr<Mlp> discriminator = child<Mlp>("discriminator", 16, 2048, 1);
};

// Trains the active set for some steps, and prints what became of the loss and what it took.
void turn(const std::string& what, shard::Engine& engine, optim::Optimizer& optimizer, int steps,
          const std::function<at::Tensor()>& loss_of_batch) {
  auto& memory = diagnostics::MemoryCounter::install();
  memory.reset_peak();
  const auto backward = [&] {  // its graph is gone when it returns: a switch may follow
    const at::Tensor loss = loss_of_batch();
    loss.backward();
    return loss.item<double>();
  };
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    const auto all = engine.agree(true, std::vector<double>{backward()});
    if (all.finite) optimizer.step(1e-3);
    engine.clear_gradients();
    last = all.sums[0] / engine.world().size();
    if (step == 0) first = last;
  }
  if (engine.world().rank() == 0)
    std::printf("  %-18s %6.3f -> %.3f %13s %16s %12s\n", what.c_str(), first, last,
                format_bytes(memory.peak_bytes()).c_str(),
                format_bytes(optimizer.state_bytes()).c_str(),
                format_bytes(nn::stored_bytes()).c_str());
}

void title(const comm::World& world, const char* text) {
  if (world.rank() == 0)
    std::printf("%s\n  %-18s %15s %13s %16s %12s\n", text, "trains now", "loss", "peak memory",
                "optimizer state", "host store");
}

at::Tensor loss_of(Net& net, at::Device device) {
  const at::Tensor x = at::randn({32, 256}, device);
  return at::mse_loss(nn::call(net, x), x.roll(1, 1));
}

void two_layers_in_turn(shard::ShardOptions options) {
  title(*options.world, "Two layers in turn; the state of the one that rests waits in host memory");
  auto net = std::make_shared<Net>();
  options.sets = {{"layer1", {"layer1.*"}, shard::Rest::offload},
                  {"layer2", {"layer2.*"}, shard::Rest::offload}};
  auto engine = shard::fully_shard(net, {.units = {"Mlp"}}, options);
  optim::AdamW opt1(*engine, {}, 0), opt2(*engine, {}, 1);
  for (int i = 0; i < 6; ++i) {
    optim::AdamW& opt = i % 2 == 0 ? opt1 : opt2;
    engine->activate(opt.set());  // nothing is wrapped again, no parameter moves
    turn(engine->sets()[opt.set()].name, *engine, opt, 10,
         [&] { return loss_of(*net, options.world->device()); });
  }
}

void generator_and_discriminator(shard::ShardOptions options) {
  title(*options.world, "Generator and discriminator, the other one frozen; both states stay");
  auto gan = std::make_shared<Gan>();
  options.sets = {{"discriminator", {"discriminator.*"}}, {"generator", {"generator.*"}}};
  auto engine = shard::fully_shard(gan, {.units = {"Mlp"}}, options);
  optim::AdamW of_discriminator(*engine, {}, 0), of_generator(*engine, {}, 1);
  const auto device = options.world->device();
  const auto fake = [&] { return gan->generator(at::randn({64, 64}, device)); };
  const auto judge = [&](const at::Tensor& points, double truth) {
    const at::Tensor logits = gan->discriminator(points);
    return at::binary_cross_entropy_with_logits(logits, at::full_like(logits, truth));
  };
  for (int i = 0; i < 3; ++i) {
    engine->activate(0);  // the generator's forward keeps nothing for a backward
    turn("discriminator", *engine, of_discriminator, 20, [&] {
      const at::Tensor real = at::randn({64, 16}, device) * 0.2 + 1.0;
      return judge(real, 1) + judge(fake(), 0);
    });
    engine->activate(1);  // gradients pass through the discriminator; it gets none
    turn("generator", *engine, of_generator, 20, [&] { return judge(fake(), 1); });
  }
}

void staged_unfreezing(shard::ShardOptions options) {
  title(*options.world, "Staged unfreezing, decided on the way; past stages' states are dropped");
  auto net = std::make_shared<Net>();
  options.sets = {{"head", {"head.*"}, shard::Rest::drop}};
  auto engine = shard::fully_shard(net, {.units = {"Mlp"}}, options);
  std::vector<std::string> patterns;
  for (const std::string part : {"head", "layer2", "layer1"}) {
    patterns.push_back(part + ".*");
    const auto set = engine->set_trainable(patterns, {.rest = shard::Rest::drop});
    optim::AdamW optimizer(*engine, {}, set);
    turn(patterns.size() == 1 ? part : "and " + part, *engine, optimizer, 20,
         [&] { return loss_of(*net, options.world->device()); });
  }
}

}  // namespace

int main() {
  diagnostics::MemoryCounter::install();  // before the first tensor
  shard::ShardOptions options;
  options.world = comm::World::join();
  at::manual_seed(static_cast<uint64_t>(options.world->rank()));
  return comm::guarded(*options.world, [&] {
    two_layers_in_turn(options);
    generator_and_discriminator(options);
    staged_unfreezing(options);
  });
}
