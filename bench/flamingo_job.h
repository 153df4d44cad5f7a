// What the tasks of bench_h200 have in common: OpenFlamingo as a CONFIG.json describes it, how it
// is sharded, and its batches. bench/torch_twin/flamingo_batch.py makes the same batches.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "floe/batch/packed_batch.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/shard/engine.h"

namespace floe::bench {

using Json = nlohmann::json;

// "device": "cuda" or "cpu".
c10::Device device_from(const Json& config);
// Of "precision": "bf16" (with fp32 masters and reductions) or "fp32".
at::ScalarType compute_dtype(const Json& config);

models::FlamingoSpec flamingo_spec(const Json& model);
// With "lora" it is "lm" alone with adapters (rank, alpha, targets), which then are all that
// trains; else OpenFlamingo.
std::shared_ptr<models::LanguageModel> language_model(const Json& model);
// Of "world" ranks this is rank 0; collectives are copies of the right size. With "join" the ranks
// that a launcher has started meet instead.
shard::ShardOptions flamingo_sharding(const Json& config);
// The model's decoder layers, gates, resampler and image blocks are units, those that it has.
shard::Policy units_of(const Json& model);
models::InputOptions flamingo_input_options(const Json& config);

// torch's own generator, so that a Python program with the same torch draws the same numbers.
at::Generator generator_from(std::uint64_t seed, c10::Device device);

// The batch of one step: random tokens and images of the sequences that "data" lists. With "padded"
// every sequence is as long as the longest of its data set and has as many images; with "reverse"
// data sets and sequences come the other way round, which sums everything in another order.
PackedBatch flamingo_batch(const Json& config, std::int64_t step);

}  // namespace floe::bench
