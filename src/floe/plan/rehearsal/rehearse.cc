#include "floe/plan/rehearsal/rehearse.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/models/language_model.h"
#include "floe/models/transformer.h"
#include "floe/nn/activations/checkpoint.h"
#include "floe/plan/rehearsal/meta_device.h"
#include "floe/plan/rehearsal/recorder.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"
#include "floe/train/step/step_graphs.h"

namespace floe::plan {
namespace {

KnownSpans spans_of(const PackedBatch& batch) {
  KnownSpans spans{batch.num_sequences(), batch.num_tokens(), 0};
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  for (std::int64_t s = 0; s < spans.spans; ++s) {
    const auto length = static_cast<double>(offsets[s + 1] - offsets[s]);
    spans.pairs += length * length;
  }
  return spans;
}

// While it lives, parameters and buffers are tensors of the meta device, as a model's that goes to
// a GPU are that GPU's; afterwards they are what they were, and the model can be planned again.
class OnMeta {
 public:
  explicit OnMeta(torch::nn::Module& model) {
    const at::AutoGradMode grad_off(false);
    for (const at::Tensor& parameter : model.parameters()) {
      if (is_on_meta(parameter)) continue;  // tied: it was there before
      kept_.push_back({parameter, parameter.detach(), parameter.requires_grad()});
      become(parameter, c10::Device(c10::kMeta));
    }
    for (const at::Tensor& buffer : model.buffers()) {
      if (is_on_meta(buffer)) continue;
      kept_.push_back({buffer, buffer.detach(), false});
      const at::Tensor values = buffer.to(c10::kMeta);
      become(buffer, c10::Device(c10::kMeta));
      kept_.back().tensor.set_data(values);
    }
  }
  ~OnMeta() {
    for (Kept& kept : kept_) {
      become(kept.tensor, kept.values.device());
      kept.tensor.set_data(kept.values);
      kept.tensor.requires_grad_(kept.trains);
    }
  }
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;

 private:
  struct Kept {
    at::Tensor tensor, values;
    bool trains;
  };
  static bool is_on_meta(const at::Tensor& tensor) {
    return tensor.key_set().has(c10::DispatchKey::Meta);
  }
  // Torch lets data of a GPU take the place of the CPU's, but not that of the meta device.
  static void become(const at::Tensor& tensor, c10::Device device) {
    tensor.unsafeGetTensorImpl()->_change_backend_component_keys(device);
  }
  std::vector<Kept> kept_;
};

using AfterForward = std::function<void()>;

// One forward and backward, as training runs it.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual void run(const AfterForward& after_forward) = 0;
  // A loader makes the next step's input while this one's is there.
  virtual void prepare_next() = 0;
};

class LanguagePass final : public Pass {
 public:
  LanguagePass(models::LanguageModel& model, const RehearsedBatch& given)
      : model_(model), given_(given), input_(prepared()) {}
  void run(const AfterForward& after_forward) override {
    train::run_pass(model_, input_, after_forward);
  }
  void prepare_next() override { next_ = prepared(); }

 private:
  std::shared_ptr<const models::ModelInput> prepared() const {
    models::InputOptions options;
    options.device = c10::Device(c10::kMeta);
    options.dtype = given_.dtype;
    return models::prepare(model_, given_.batch, options);
  }

  models::LanguageModel& model_;
  const RehearsedBatch& given_;
  std::shared_ptr<const models::ModelInput> input_, next_;
};

class TransformerPass final : public Pass {
 public:
  TransformerPass(models::Transformer& model, const PackedBatch& batch) : model_(model) {
    const std::int64_t rows = batch.num_sequences(), tokens = batch.num_tokens();
    require<ConfigError>(rows > 0 && spans_of(batch).pairs * static_cast<double>(rows) ==
                                         static_cast<double>(tokens) * static_cast<double>(tokens),
                         "a model that exists only as sizes takes sequences of one length");
    ids_ =
        at::empty({rows, tokens / rows}, at::TensorOptions().dtype(at::kLong).device(c10::kMeta));
  }
  void run(const AfterForward& after_forward) override {
    const at::Tensor loss = models::next_token_loss(nn::call(model_, ids_), ids_);
    if (after_forward) after_forward();
    loss.backward();
  }
  void prepare_next() override { next_ = at::empty_like(ids_); }

 private:
  models::Transformer& model_;
  at::Tensor ids_, next_;
};

std::unique_ptr<Pass> make_pass(torch::nn::Module& model, const RehearsedBatch& given) {
  if (auto* language = dynamic_cast<models::LanguageModel*>(&model))
    return std::make_unique<LanguagePass>(*language, given);
  auto* transformer = dynamic_cast<models::Transformer*>(&model);
  require<ConfigError>(transformer != nullptr, "this kind of model cannot be rehearsed");
  return std::make_unique<TransformerPass>(*transformer, given.batch);
}

void refuse_what_cannot_be_rehearsed(const RehearsedModel& subject) {
  require<ConfigError>(!subject.options.cpu_offload,
                       "a step whose slices are in host memory (strategy.cpu_offload) cannot be "
                       "rehearsed; leave cpu_offload out, or the machine");
  require<ConfigError>(
      !subject.on_cpu || !subject.options.frozen.compute,
      "products in 8 bits (strategy.frozen.compute) are only emulated on the CPU, and "
      "a step with them is not rehearsed there; leave frozen.compute out");
}

// The passes of an update, of an engine that knows the order of its units: their steps, and what is
// held meanwhile.
void trace_update(shard::Engine& engine, Pass& pass, Recorder& recorder, DeviceMemory& memory,
                  Trace& trace) {
  const int num_units = static_cast<int>(engine.plan().units.size());
  engine.add_observer(&recorder);
  recorder.set_memory(&memory);
  engine.reset_memory_peaks();
  memory.reset_peak();
  trace.memory.before = memory.live();
  if (trace.passes > 1) {
    engine.set_gradient_sync(false);
    recorder.begin();
    pass.run({});
    trace.earlier = recorder.take();
    engine.set_gradient_sync(true);
  }
  // Also what the passes before it have left, which are sums of gradients.
  const std::vector<std::int64_t> there = memory.by_owner(num_units);
  recorder.begin();
  pass.run([&] { trace.memory.kept_by_unit = memory.by_owner(num_units); });
  trace.steps = recorder.take();
  std::vector<std::int64_t>& kept = trace.memory.kept_by_unit;
  std::transform(kept.begin(), kept.end(), there.begin(), kept.begin(), std::minus<>());
  trace.memory.kept_outside = kept.back();
  kept.pop_back();
  trace.memory.peak = memory.peak();
  trace.memory.host_peak = memory.host_peak();
  trace.memory.pool_peak = engine.memory().pool_peak;
  trace.memory.gradient_pool_peak = engine.memory().gradient_pool_peak;
  engine.remove_observer(&recorder);
  recorder.set_memory(nullptr);
}

}  // namespace

Trace rehearse(const RehearsedModel& subject, const RehearsedBatch& given) {
  refuse_what_cannot_be_rehearsed(subject);
  const nn::NothingRandom nothing_random;
  Recorder recorder(subject.on_cpu);
  recorder.set_spans(spans_of(given.batch));
  MetaDevice meta(recorder, subject.on_cpu ? 1 : 512);  // as CUDA's allocator rounds
  const kernels::RehearsalScope rehearsing(recorder);
  const OnMeta on_meta(*subject.model);
  shard::ShardOptions options = subject.options;
  options.world =
      comm::World::fake(0, subject.world_size, c10::Device(c10::kMeta), recorder.collectives());
  Trace trace;
  trace.passes = options.passes_per_update;
  trace.tokens = given.batch.num_tokens();
  trace.images = given.batch.num_images();
  const auto engine = shard::fully_shard(subject.model, subject.policy, options);
  recorder.set_units(engine->plan());
  const std::unique_ptr<Pass> pass = make_pass(*subject.model, given);
  pass->run({});  // the engine learns the order
  engine->clear_gradients();
  pass->prepare_next();
  trace_update(*engine, *pass, recorder, meta.memory(), trace);
  for (const shard::FlatGroup* group : engine->active_groups())
    trace.gradient_numel += group->plan().layout.slice_numel();
  engine->clear_gradients();
  return trace;
}

}  // namespace floe::plan
