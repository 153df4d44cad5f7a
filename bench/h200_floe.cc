// One side of bench/h200.py: steps of OpenFlamingo's training on one GPU with floe, as one line of JSON.
//
//   bench_h200 CONFIG.json
//
// CONFIG.json says the same to every system that is compared; bench/h200.py writes it. The model has
// random weights and the batch random tokens and images; the process acts as rank 0 of `world` ranks
// whose collectives are device copies of the right size.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/models/flamingo.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"
#include "json_program.h"

namespace floe {
namespace {

using Json = nlohmann::json;

models::FlamingoSpec spec_from(const Json& json) {
  models::FlamingoSpec spec;
  spec.lm = models::decoder_spec(json.at("lm"), "CONFIG.json");
  spec.cross_attention_every = json.at("cross_attention_every");
  spec.media_token = json.at("media_token");
  spec.endofchunk_token = json.at("endofchunk_token");
  return spec;
}

// One data set's part of a step: sequences of these lengths, each with so many images spread evenly.
PackedBatch random_batch(const Json& json, const models::FlamingoSpec& spec, std::int64_t source,
                         std::mt19937& random) {
  std::vector<std::int64_t> ids, positions, labels, offsets{0}, image_offsets{0}, slots;
  std::uniform_int_distribution<std::int64_t> token(1, json.at("text_tokens"));
  for (const Json& sequence : json.at("sequences")) {
    const std::int64_t length = sequence.at(0), images = sequence.at(1);
    for (std::int64_t i = 0; i < length; ++i) {
      const bool image = images > 0 && i * images % length < images;
      ids.push_back(image ? spec.media_token : token(random));
      labels.push_back(image ? kNoLabel : ids.back());
      positions.push_back(i);
    }
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
    image_offsets.push_back(image_offsets.back() + images);
    slots.push_back(json.at("slots"));
  }
  const auto longs = [](const std::vector<std::int64_t>& values) {
    return at::tensor(values, at::kLong);
  };
  PackedBatch batch;
  batch.ids = longs(ids);
  batch.positions = longs(positions);
  batch.labels = longs(labels);
  batch.sequence_offsets = longs(offsets);
  batch.image_offsets = longs(image_offsets);
  batch.image_slots = longs(slots);
  batch.source = at::full({static_cast<std::int64_t>(slots.size())}, source, at::kLong);
  batch.images = at::randn({image_offsets.back(), 3, 224, 224},
                           at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
  batch.sample_keys.assign(slots.size(), "random");
  return batch;
}

PackedBatch step_batch(const Json& json, const models::FlamingoSpec& spec) {
  std::mt19937 random(json.at("seed").get<unsigned>());
  PackedBatch all;
  std::int64_t source = 0;
  for (const Json& part : json.at("data")) {
    const PackedBatch batch = random_batch(part, spec, source, random);
    all = source == 0 ? batch : models::concatenate(all, batch);
    source += 1;
  }
  return all;
}

class Tally final : public shard::Observer {
 public:
  void on(const shard::Event& event) override {
    using Kind = shard::Event::Kind;
    if (event.kind == Kind::gather || event.kind == Kind::prefetch) {
      gathers += 1;
      gathered_bytes += event.bytes;
    } else if (event.kind == Kind::reduce) {
      reduces += 1;
      reduced_bytes += event.bytes;
    }
  }
  std::int64_t gathers = 0, gathered_bytes = 0, reduces = 0, reduced_bytes = 0;
};

// Time of each kernel of what runs while it lives, by name.
class KernelProfile {
 public:
  KernelProfile() {
    using namespace torch::profiler::impl;
    const ProfilerConfig config(ProfilerState::KINETO);
    const std::set<ActivityType> activities{ActivityType::CUDA};
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  }
  // [[name, milliseconds, launches], ...], longest first.
  Json finish() {
    std::map<std::string, std::pair<double, int>> kernels;
    const auto result = torch::autograd::profiler::disableProfiler();
    for (const auto& event : result->events()) {
      if (event.deviceType() != c10::DeviceType::CUDA) continue;
      auto& [time, launches] = kernels[event.name()];
      time += 1e-6 * static_cast<double>(event.durationNs());
      launches += 1;
    }
    std::vector<Json> rows;
    for (const auto& [name, sums] : kernels) rows.push_back({name, sums.first, sums.second});
    std::sort(rows.begin(), rows.end(),
              [](const Json& a, const Json& b) { return a[1].get<double>() > b[1].get<double>(); });
    return rows;
  }
};

class Clock {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::int64_t peak_bytes() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak;
}

Json train(const Json& json) {
  const Clock clock;
  const models::FlamingoSpec spec = spec_from(json.at("model"));
  auto model = std::make_shared<models::Flamingo>(spec);
  nn::set_trainable(*model, model->trained_by_default());
  shard::ShardOptions options;
  options.world = comm::World::fake(0, json.at("world"), c10::Device(c10::kCUDA, 0));
  options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
  options.prefetch = json.at("prefetch");
  options.activation_checkpointing = json.at("checkpointing").get<std::vector<std::string>>();
  if (json.at("residency") == "resident") options.frozen.residency = shard::Residency::resident;
  const shard::Policy policy{
      .units = {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler", "ViTBlock"}};
  const auto engine = shard::fully_shard(model, policy, options);
  optim::AdamW optimizer(*engine, {.decay = {.weight_decay = 0.1}});
  const PackedBatch batch = step_batch(json, spec);
  models::InputOptions input_options;
  input_options.device = options.world->device();
  input_options.dtype = at::kBFloat16;
  input_options.loss.weight = json.at("loss_weights").get<std::vector<double>>();
  c10::cuda::device_synchronize();
  const double build_ms = clock.milliseconds();

  Tally tally;
  engine->add_observer(&tally);
  std::vector<double> losses, norms, step_ms, forward_ms, backward_ms, prepare_ms, agree_ms;
  // As a loader does it: the next step's input is made while the GPU works on this one.
  auto input = models::prepare(*model, batch, input_options);
  const auto step = [&] {
    const Clock begin;
    at::Tensor loss = std::get<0>(models::training_loss(*model, input));
    const double forward = begin.milliseconds();
    loss.backward();
    const double backward = begin.milliseconds();
    input = models::prepare(*model, batch, input_options);
    const double prepared = begin.milliseconds();
    const auto agreement = engine->agree();
    agree_ms.push_back(begin.milliseconds());
    prepare_ms.push_back(prepared - backward);
    require(agreement.finite, "a gradient is not finite");
    optim::clip_by_norm(*engine, agreement.gradient_norm, 1.0);
    optimizer.step(json.at("lr"));
    engine->clear_gradients();
    c10::cuda::device_synchronize();
    step_ms.push_back(begin.milliseconds());
    forward_ms.push_back(forward);
    backward_ms.push_back(backward - forward);
    losses.push_back(loss.item<double>());
    norms.push_back(agreement.gradient_norm);
  };
  const std::int64_t warmup = json.at("warmup"), steps = json.at("steps");
  for (std::int64_t i = 0; i < warmup; ++i) step();
  step_ms.clear();
  forward_ms.clear();
  backward_ms.clear();
  prepare_ms.clear();
  agree_ms.clear();
  tally = Tally();
  const std::int64_t between =
      c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  for (std::int64_t i = 0; i < steps; ++i) step();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  Json result{{"losses", losses},
              {"gradient_norms", norms},
              {"build_ms", build_ms},
              {"step_ms", step_ms},
              {"forward_host_ms", forward_ms},
              {"backward_host_ms", backward_ms},
              {"prepare_host_ms", prepare_ms},
              {"until_agreed_ms", agree_ms},
              {"peak_bytes", peak_bytes()},
              {"reserved_bytes", stats.reserved_bytes[0].peak},
              {"between_bytes", between},
              {"pool_peak_bytes", engine->memory().pool_peak},
              {"gradient_pool_peak_bytes", engine->memory().gradient_pool_peak},
              {"optimizer_bytes", optimizer.state_bytes()},
              {"tokens", batch.num_tokens()},
              {"images", batch.num_images()},
              {"gathers", tally.gathers / steps},
              {"gathered_bytes", tally.gathered_bytes / steps},
              {"reduces", tally.reduces / steps},
              {"reduced_bytes", tally.reduced_bytes / steps}};
  if (json.at("profile")) {
    KernelProfile profile;
    step();
    result["kernels"] = profile.finish();
  }
  engine->remove_observer(&tally);
  return result;
}

int run(const std::vector<std::string>& arguments) {
  require<ConfigError>(arguments.size() == 1, "usage: bench_h200 CONFIG.json");
  std::cout << train(bench::read_config(arguments[0])).dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) { return floe::bench::run_program(argc, argv, floe::run); }
