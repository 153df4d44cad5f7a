// The blocks `strategy:` and `precision:`: how a model's state is spread over the ranks, and in
// which numbers it computes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/schema/codec.h"
#include "floe/shard/strategy.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}

struct MixedPrecisionConfig {
  DType param = DType::bf16;  // of gathered parameters and computation
  DType reduce = DType::f32;  // of gradient reduction
  DType buffer = DType::f32;  // of buffers such as running statistics
};
void describe(config::Schema<MixedPrecisionConfig>& s);

struct FrozenConfig {
  shard::Residency residency = shard::Residency::sharded;
  shard::FrozenSharding sharding = shard::FrozenSharding::all;
  std::optional<config::ByteSize> memory_budget;  // exactly with `auto`
  std::optional<DType> dtype;                     // storage; null = mixed_precision.param
  std::optional<DType> compute;                   // of linear layers; null = mixed_precision.param

  // What the weights of linear layers are stored in; null as for `dtype`.
  std::optional<DType> matrix_dtype() const { return compute ? compute : dtype; }
};
void describe(config::Schema<FrozenConfig>& s);

struct ActivationsConfig {
  // inputs: everything else is recomputed. products: results of matrix products and
  // attention stay too.
  enum class Keep { inputs, products };

  Keep keep = Keep::inputs;
  bool offload = false;  // what stays waits in host memory
  double share = 1;      // of the modules of each entry: the first ones are checkpointed
};
inline auto enum_names(ActivationsConfig::Keep) {
  using enum ActivationsConfig::Keep;
  return std::to_array<std::pair<std::string_view, ActivationsConfig::Keep>>(
      {{"inputs", inputs}, {"products", products}});
}
void describe(config::Schema<ActivationsConfig>& s);

// floe chooses the strategy of a run when it starts (plan/choose/choose.h).
struct AutoStrategyConfig {
  std::optional<config::ByteSize> memory;  // that a rank may use; null: what its device has
  std::optional<std::string> machine;      // as of floe plan --gpu; null: what the run is on
  std::optional<std::string> chosen_for;   // the question to which the other keys are the answer
};
void describe(config::Schema<AutoStrategyConfig>& s);

struct StrategyConfig {
  std::optional<AutoStrategyConfig> automatic;  // null: as the other keys say
  shard::Strategy sharding = shard::Strategy::full_shard;
  std::int64_t hybrid_shard_size = 8;  // ranks that share one copy, where there are copies
  std::vector<std::string> units{"DecoderLayer", "GatedCrossAttention", "PerceiverResampler",
                                 "ViTBlock"};
  std::vector<std::string> activation_checkpointing;  // units by class; empty: off
  ActivationsConfig activations;
  MixedPrecisionConfig mixed_precision;
  FrozenConfig frozen;
  std::optional<shard::Accumulate> accumulate;  // null: the plan decides
  bool cuda_graphs = false;
  bool cpu_offload = false;
  std::int64_t prefetch = 1;  // units gathered ahead of the one that computes
};
void describe(config::Schema<StrategyConfig>& s);

struct PrecisionConfig {
  std::optional<DType> autocast;     // fp32 computation under torch's autocast; null: off
  std::optional<double> loss_scale;  // the first one with fp16; null: 65536 with fp16, else none
};
void describe(config::Schema<PrecisionConfig>& s);

}  // namespace floe
