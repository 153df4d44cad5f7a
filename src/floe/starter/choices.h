// How a run shall go so that it fits: what trains, over how many ranks, in which numbers, with
// which batches, for how long.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/schema/value.h"
#include "floe/shard/strategy.h"
#include "floe/starter/data_facts.h"
#include "floe/starter/machine.h"
#include "floe/starter/model_facts.h"

namespace floe::starter {

struct Wishes {
  bool lora = false, full = false;         // neither: what fits
  std::optional<std::int64_t> ranks;       // null: one per GPU, else one
  std::optional<std::int64_t> gpu_memory;  // of GPUs that need not be here
};

// The batches of one source.
struct SourceChoice {
  std::int64_t batch = 1;                 // samples or tokens on each rank
  std::int64_t wanted = 1;                // what it would be without limits
  std::int64_t capacity = 1;              // what the data of one stream fills
  std::optional<std::int64_t> per_epoch;  // samples or tokens of an epoch; null: no end
  double passes = 1;                      // over the data, in an epoch
};

// What a rank needs of its memory.
struct Need {
  std::int64_t model = 0;        // by the plan, on the device
  std::int64_t activations = 0;  // of a batch, estimated
  std::int64_t copies = 0;       // of what is saved, while it is written; none on a GPU
  std::int64_t host = 0;         // of a GPU's rank: by the plan, and such copies, in host memory
  std::int64_t available = 0;

  std::int64_t all() const { return model + activations + copies; }
  bool fits() const { return all() <= available; }
};

struct Choices {
  std::int64_t ranks = 1;
  bool on_gpu = false;
  bool lora = false;
  bool lora_by_need = false;  // all of it would not have fitted
  shard::Strategy sharding = shard::Strategy::no_shard;
  std::vector<std::string> recompute;  // classes; empty: none
  std::vector<std::string> could_recompute;
  bool offload = false;
  DType dtype = DType::f32;
  Need need;
  std::string does_not_fit;  // what to do about it; empty: it fits
  std::int64_t trainable_numel = 0, frozen_numel = 0;

  std::vector<SourceChoice> sources;  // as the data; none for prepared batches
  std::int64_t accumulation = 1;
  std::optional<std::int64_t> batches;  // of an epoch, on a rank; null: there is no telling
  std::int64_t epochs = 1;              // where there are batches
  std::int64_t steps = 0;               // of the run
  bool resampled = false;
  std::int64_t workers = 1;
  std::optional<std::int64_t> threads;  // null: it is for a machine that is not here
};

// `model_block`: as the configuration will have it, without adapters. Throws ConfigError for what
// cannot be at all.
Choices choose(const ModelFacts& model, const config::Value& model_block,
               const std::vector<DataFacts>& data, const Machine& machine, const Wishes& wishes);

// The block model.lora of a starter.
config::Value lora_block(const ModelFacts& model);

}  // namespace floe::starter
