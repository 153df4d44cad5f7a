#include "floe/observe/diagnostics/dtypes.h"

#include <optional>
#include <set>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/kernels/eight_bit/eight_bit.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "floe/strategy/strategy_options.h"

namespace floe::diagnostics {
namespace {

using strategy::name_of;
using Wanted = std::optional<c10::ScalarType>;

constexpr const char* kParam = "strategy.mixed_precision.param";
constexpr const char* kReduce = "strategy.mixed_precision.reduce";

// A floating-point tensor that should be of the dtype that `key` is set to.
bool fits(c10::ScalarType real, Wanted wanted) {
  return !wanted || !at::isFloatingType(real) || real == *wanted;
}

std::string mismatch(const std::string& what, c10::ScalarType real, const char* key,
                     c10::ScalarType wanted) {
  return str(
      what, " in ", name_of(real), ", but ", key, " is ", name_of(wanted),
      ": the setting did not arrive; do not cast the model after it was sharded, and shard it "
      "with the options of this configuration");
}

void check(const std::string& what, c10::ScalarType real, const char* key, Wanted wanted) {
  if (!fits(real, wanted)) throw ShardError(mismatch(what, real, key, *wanted));
}

// What says how frozen matrices are stored.
const char* key_of_matrices(const shard::FrozenOptions& frozen) {
  if (frozen.compute) return "strategy.frozen.compute";
  return frozen.dtype ? "strategy.frozen.dtype" : kParam;
}

void check_frozen(const shard::FlatGroup& group, const shard::ShardOptions& configured) {
  const auto stored = group.stored_dtype();
  const std::string what = str("frozen group '", group.name(), "' is stored");
  Wanted wanted = configured.frozen.matrix_dtype();
  const char* key = key_of_matrices(configured.frozen);
  bool matrices = false;
  for (std::size_t i = 0; i < group.plan().parameters.size(); ++i)
    matrices = matrices || group.parameter(i).is_matrix;
  // 8 bits are for matrices; the rest is stored as it is used.
  if (!wanted || (kernels::is_eight_bit(*wanted) && !matrices))
    wanted = configured.mixed_precision.param;
  if (wanted && (at::isFloatingType(stored) || group.plan().eight_bit()) && stored != *wanted)
    throw ShardError(mismatch(what, stored, key, *wanted));
}

void check_group(const shard::FlatGroup& group, const shard::ShardOptions& configured) {
  const auto& mixed = configured.mixed_precision;
  const auto stored = group.stored_dtype();
  const std::string name = str("group '", group.name(), "'");
  for (std::size_t i = 0; i < group.plan().parameters.size(); ++i)
    check(str("parameter '", group.parameter(i).name, "' of ", name, " computes"),
          group.leaf(i).scalar_type(), group.plan().multiplied ? "strategy.frozen.compute" : kParam,
          group.plan().multiplied ? configured.frozen.compute : mixed.param);
  if (group.plan().masters_away()) {
    if (group.plan().eight_bit())
      check(str(name, ", which rests, is stored"), stored, key_of_matrices(configured.frozen),
            configured.frozen.matrix_dtype());
    else
      check(str(name, ", which rests, is stored"), stored, kParam, mixed.param);
    const auto masters = group.values().scalar_type();
    require<ShardError>(masters == stored || masters == group.plan().master_dtype,
                        "the masters of ", name, " rest in ", name_of(masters),
                        ", but updates need ", name_of(group.plan().master_dtype));
  } else if (group.plan().trainable) {
    require<ShardError>(stored == at::kFloat || stored == at::kDouble, name,
                        " trains on slices in ", name_of(stored), ", but updates need fp32");
    if (group.gradient().defined())
      require<ShardError>(group.gradient().scalar_type() == stored, "the gradient of ", name,
                          " is in ", name_of(group.gradient().scalar_type()), ", but its slice in ",
                          name_of(stored));
  } else {
    check_frozen(group, configured);
  }
}

std::string names_of(const std::set<c10::ScalarType>& types) {
  std::vector<std::string> names;
  for (const auto type : types) names.emplace_back(name_of(type));
  return join(names, " and ");
}

const char* action_of(shard::Event::Kind kind) {
  using Kind = shard::Event::Kind;
  switch (kind) {
    case Kind::gather:
    case Kind::prefetch: return "all-gathers";
    case Kind::reduce: return "gradient reductions";
    case Kind::replicate: return "reductions over copies";
    default: return nullptr;
  }
}

}  // namespace

void check_dtypes(const shard::Engine& engine, const optim::Optimizer& optimizer,
                  const shard::ShardOptions& configured) {
  for (const auto& group : engine.groups()) check_group(*group, configured);
  for (std::size_t g = 0; g < engine.trainable_groups().size(); ++g) {
    const shard::FlatGroup& group = *engine.trainable_groups()[g];
    for (const optim::StateSlice& slice : optimizer.state_slices(g))
      require<ShardError>(
          !slice.values.defined() || slice.values.scalar_type() == group.plan().master_dtype,
          "optimizer state ", slice.name, " of group '", group.name(), "' is in ",
          name_of(slice.values.scalar_type()), ", but its slice in ",
          name_of(group.plan().master_dtype));
  }
  for (const auto& buffer : engine.model().named_buffers())
    check(str("buffer '", buffer.key(), "' is"), buffer.value().scalar_type(),
          "strategy.mixed_precision.buffer", configured.mixed_precision.buffer);
}

std::string dtype_line(const shard::Engine& engine, const optim::Optimizer& optimizer) {
  std::set<c10::ScalarType> trainable, resting, frozen, whole, state, buffers;
  for (const auto& group : engine.groups()) {
    (group->plan().active      ? trainable
     : group->plan().trainable ? resting
                               : frozen)
        .insert(group->stored_dtype());
    whole.insert(group->leaf(0).scalar_type());
  }
  for (std::size_t g = 0; g < engine.trainable_groups().size(); ++g)
    for (const optim::StateSlice& slice : optimizer.state_slices(g))
      if (slice.values.defined()) state.insert(slice.values.scalar_type());
  for (const at::Tensor& buffer : engine.model().buffers()) buffers.insert(buffer.scalar_type());

  std::vector<std::string> parts;
  const auto part = [&](const char* what, const std::set<c10::ScalarType>& types) {
    if (!types.empty()) parts.push_back(str(what, " ", names_of(types)));
  };
  part("trainable slices", trainable);
  part("resting slices", resting);
  part("frozen slices", frozen);
  part("parameters in use", whole);
  part("optimizer state", state);
  part("buffers", buffers);
  return str("in memory: ", join(parts));
}

void CollectiveTypes::on(const shard::Event& event) {
  const char* action = action_of(event.kind);
  if (!action) return;
  Tally& tally = tallies_[{action, event.dtype}];
  tally.count += 1;
  tally.bytes += event.bytes;
  const bool gathers =
      event.kind == shard::Event::Kind::gather || event.kind == shard::Event::Kind::prefetch;
  const Wanted wanted = gathers ? mixed_.param : mixed_.reduce;
  const bool as_stored = gathers && kernels::is_eight_bit(event.dtype);
  if (problem_.empty() && !as_stored && !fits(event.dtype, wanted))
    problem_ = mismatch(str("group '", event.group, "' is ", gathers ? "gathered" : "reduced"),
                        event.dtype, gathers ? kParam : kReduce, *wanted);
}

void CollectiveTypes::check() const {
  if (!problem_.empty()) throw ShardError(problem_);
}

std::string CollectiveTypes::line() const {
  std::vector<std::string> parts;
  for (const auto& [key, tally] : tallies_)
    parts.push_back(str(tally.count, " ", key.first, " in ", name_of(key.second), " (",
                        format_bytes(tally.bytes), ")"));
  return str("in collectives: ", parts.empty() ? "nothing is sent" : join(parts));
}

}  // namespace floe::diagnostics
