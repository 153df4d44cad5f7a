// A small model on this rank's world, with steps that are marked like those of the trainer.
#pragma once

#include <ATen/ops/randint.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "floe/models/transformer.h"
#include "floe/observe/diagnostics/memory_watch.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "tests/support/ranks.h"

namespace floe::test {

// On a GPU, cuBLAS keeps tens of MiB for itself, beside which nothing of a small model would be
// seen. Before torch asks for it, and for the ranks that this process starts too.
inline const bool kSmallWorkspaces = [] {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", /*overwrite=*/1);
  setenv("CUBLASLT_WORKSPACE_SIZE", "128", /*overwrite=*/1);
  return true;
}();

class ShardedModel {
 public:
  explicit ShardedModel(const models::TransformerSize& size, shard::ShardOptions options = {},
                        const shard::Policy& policy = {.units = {"DecoderLayer"}})
      : model_(std::make_shared<models::Transformer>(size)) {
    if (!options.world) options.world = join_world();
    engine = shard::fully_shard(model_, policy, options);
    optimizer = std::make_unique<optim::AdamW>(*engine, optim::AdamWOptions{});
  }

  using Mark = std::function<void(diagnostics::MemoryPoint)>;
  // `micro`: so many forwards and backwards make one update.
  void step(
      std::int64_t batch, std::int64_t tokens, const Mark& mark = [](diagnostics::MemoryPoint) {},
      int micro = 1) {
    using enum diagnostics::MemoryPoint;
    mark(batch_start);
    for (int i = 0; i < micro; ++i) {
      const at::Tensor ids = at::randint(0, model_->size().vocab, {batch, tokens}, at::kLong)
                                 .to(engine->world().device());
      const at::Tensor loss = models::next_token_loss(nn::call(*model_, ids), ids);
      mark(after_forward);
      loss.backward();
      mark(after_backward);
    }
    engine->agree();
    mark(before_optimizer_step);
    optimizer->step(1e-3);
    engine->clear_gradients();
    mark(batch_end);
  }

  std::shared_ptr<shard::Engine> engine;
  std::unique_ptr<optim::AdamW> optimizer;
  models::Transformer& model() { return *model_; }

 private:
  std::shared_ptr<models::Transformer> model_;
};

}  // namespace floe::test
