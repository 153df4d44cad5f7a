// What a user decides about sharding.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/nn/boundary.h"
#include "floe/shard/strategy.h"

namespace floe::comm {
class World;
}
namespace floe {
class TensorSource;
}

namespace floe::shard {

struct MixedPrecision {
  std::optional<c10::ScalarType> param;   // of gathered parameters; null: as they are
  std::optional<c10::ScalarType> reduce;  // of gradient reductions; null: as `param`
  std::optional<c10::ScalarType> buffer;  // of floating-point buffers; null: as they are
  bool cast_inputs = true;                // floating-point inputs of units become `param`
};

struct FrozenOptions {
  Residency residency = Residency::sharded;
  FrozenSharding sharding = FrozenSharding::all;  // of what is not resident
  // automatic: what frozen parameters may occupy on a rank, resident copies and slices together.
  std::int64_t memory_budget_bytes = 0;
  // Storage; null: MixedPrecision::param, else as they are. at::kChar or at::kFloat8_e4m3fn: frozen
  // matrices in 8 bits (see Note [Frozen matrices in 8 bits]), everything else as with null.
  std::optional<c10::ScalarType> dtype;
  // at::kFloat8_e4m3fn: frozen matrices of floe's own linear layers are multiplied as they are
  // stored, in 8 bits (see Note [Frozen matrices that are multiplied in 8 bits]); `dtype` is then
  // null or the same. Null: values are computed with.
  std::optional<c10::ScalarType> compute;

  // What matrices are stored in; null as for `dtype`.
  std::optional<c10::ScalarType> matrix_dtype() const { return compute ? compute : dtype; }
};

// Which modules are units. Each entry of `units` is a class name ("DecoderLayer") or, when it
// has one of . * ? [, a pattern over dotted names ("layers.*"). An entry that matches nothing
// is an error.
struct Policy {
  std::vector<std::string> units;
  // Modules whose parameters (without those of inner units) reach this number are units; 0: off.
  std::int64_t min_unit_numel = 0;
  // A module outside all units that itself owns at least this many elements (an embedding, a head)
  // is a unit of its own; smaller leftovers stay gathered while the root computes.
  std::int64_t lone_unit_numel = 1 << 16;
};

// What becomes of a set's optimizer state, and of its fp32 masters, while the set rests.
enum class Rest {
  keep,     // they stay where they are
  offload,  // into host memory; they come back when the set trains again
  drop,  // the state is forgotten, and the masters with it: both start anew from the stored values
};
constexpr const char* name_of(Rest rest) {
  switch (rest) {
    case Rest::keep: return "keep";
    case Rest::offload: return "offload";
    case Rest::drop: return "drop";
  }
  return "?";
}

// Parameters that train together, in turn with other sets.
struct ParameterSet {
  std::string name;
  std::vector<std::string> patterns;
  Rest rest = Rest::keep;
};

struct ShardOptions {
  std::shared_ptr<comm::World> world;  // required

  Strategy strategy = Strategy::full_shard;
  int hybrid_shard_size = 8;  // neighbours, where something is sliced over those
  // Per unit, by pattern or class name; the first match wins over `strategy`.
  std::vector<std::pair<std::string, Strategy>> unit_strategies;

  MixedPrecision mixed_precision;
  // Runs forwards under torch's autocast in that dtype. Apart from mixed precision, which decides
  // how parameters are stored, gathered and reduced whatever autocast says.
  std::optional<c10::ScalarType> autocast;
  FrozenOptions frozen;
  bool cpu_offload = false;  // slices, their gradients and optimizer state stay in host memory
  int prefetch = 1;          // how many units ahead are gathered while one computes

  // How many passes (forward and backward) an update takes, as a plan counts them; all but the last
  // run with Engine::set_gradient_sync(false).
  int passes_per_update = 1;
  // Where their gradients add up; null: ShardPlan::accumulates says.
  std::optional<Accumulate> accumulate;

  // Units or other modules, by class name or pattern, whose forward is recomputed in backward.
  std::vector<std::string> activation_checkpointing;
  // Of those that each entry names, in the order of the model: so many of the first ones. The
  // backward of the last ones comes first, so what they keep is gone when others are recomputed.
  double checkpointed_share = 1;
  nn::KeptActivations kept_activations;  // of those

  // Patterns of the parameters that train; null: those with requires_grad.
  std::optional<std::vector<std::string>> trainable;
  // Instead: several sets that train in turn (see Note [Sets]); the first one begins.
  // They may overlap.
  std::vector<ParameterSet> sets;

  // Where values come from, while the engine is made and in Engine::set_trainable with `reread`;
  // not owned. Parameters that the source has are read from it, byte ranges only; the others start
  // as their module says, from this seed.
  const TensorSource* source = nullptr;
  std::uint64_t seed = 0;

  // Gather units that have no boundary (closed foreign containers) by watching operators. See
  // Note [Watching operators].
  bool watch_operators = false;
};

}  // namespace floe::shard
