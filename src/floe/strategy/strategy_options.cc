#include "floe/strategy/strategy_options.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "floe/core/error.h"
#include "floe/nn/module.h"

namespace floe::strategy {
namespace {

// What parameters and gradients can be, and at the end what frozen matrices may be
// stored in besides.
constexpr std::array<std::pair<DType, c10::ScalarType>, 6> kTypes{
    {{DType::f64, at::kDouble},
     {DType::f32, at::kFloat},
     {DType::f16, at::kHalf},
     {DType::bf16, at::kBFloat16},
     {DType::i8, at::kChar},
     {DType::f8_e4m3, at::kFloat8_e4m3fn}}};

// Which key says what an option of the engine says.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kKeys{
    {{"Policy::units", "strategy.units"},
     {"ShardOptions::hybrid_shard_size", "strategy.hybrid_shard_size"},
     {"ShardOptions::activation_checkpointing", "strategy.activation_checkpointing"},
     {"ShardOptions::kept_activations", "strategy.activations"},
     {"ShardOptions::checkpointed_share", "strategy.activations.share"},
     {"ShardOptions::trainable", "train.trainable"},
     {"ShardOptions::sets", "phases"},
     {"FrozenOptions::dtype", "strategy.frozen.dtype"},
     {"FrozenOptions::compute", "strategy.frozen.compute"},
     {"MixedPrecision::param", "strategy.mixed_precision.param"},
     {"ShardOptions::autocast", "precision.autocast"},
     {"FrozenOptions::memory_budget_bytes", "strategy.frozen.memory_budget"}}};

int small(const char* key, std::int64_t value) {
  require<ConfigError>(value <= std::numeric_limits<int>::max(), key, " is ", value,
                       ", but no number of ranks or units is that large");
  return static_cast<int>(value);
}

}  // namespace

std::string with_config_keys(std::string message) {
  for (const auto& [option, key] : kKeys)
    for (auto at = message.find(option); at != std::string::npos;
         at = message.find(option, at + key.size()))
      message.replace(at, option.size(), key);
  return message;
}

c10::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [ours, torchs] : kTypes)
    if (ours == dtype) return torchs;
  throw ConfigError(
      str("parameters cannot be ", floe::name_of(dtype), "; choose fp32, bf16 or fp16"));
}

std::string_view name_of(c10::ScalarType dtype) {
  for (const auto& [ours, torchs] : kTypes)
    if (torchs == dtype) return floe::name_of(ours);
  return c10::toString(dtype);
}

shard::Policy policy_of(const StrategyConfig& strategy, const torch::nn::Module& model) {
  shard::Policy policy;
  policy.units = strategy.units;
  if (strategy.units == StrategyConfig{}.units) {
    std::set<std::string> classes;
    for (const auto& module : model.modules(/*include_self=*/false))
      classes.insert(nn::class_name(*module));
    std::erase_if(policy.units, [&](const std::string& unit) { return !classes.contains(unit); });
    for (const auto& module : model.modules(/*include_self=*/false)) {
      const auto* own = dynamic_cast<const nn::Module*>(module.get());
      const std::string unit = nn::class_name(*module);
      if (own && own->is_unit_by_default() && std::ranges::count(policy.units, unit) == 0)
        policy.units.push_back(unit);
    }
  }
  return policy;
}

shard::ShardOptions shard_options_of(const StrategyConfig& strategy) {
  require<ConfigError>(!strategy.automatic || strategy.automatic->chosen_for,
                       "strategy.auto has not chosen yet: floe train does when a run starts, and "
                       "floe plan --gpu shows what");
  shard::ShardOptions options;
  options.strategy = strategy.sharding;
  options.hybrid_shard_size = small("strategy.hybrid_shard_size", strategy.hybrid_shard_size);
  options.mixed_precision.param = scalar_type_of(strategy.mixed_precision.param);
  options.mixed_precision.reduce = scalar_type_of(strategy.mixed_precision.reduce);
  options.mixed_precision.buffer = scalar_type_of(strategy.mixed_precision.buffer);
  options.frozen.residency = strategy.frozen.residency;
  options.frozen.sharding = strategy.frozen.sharding;
  if (strategy.frozen.memory_budget)
    options.frozen.memory_budget_bytes = strategy.frozen.memory_budget->bytes;
  if (strategy.frozen.dtype) options.frozen.dtype = scalar_type_of(*strategy.frozen.dtype);
  if (strategy.frozen.compute) options.frozen.compute = scalar_type_of(*strategy.frozen.compute);
  options.accumulate = strategy.accumulate;
  // A recorded pass leaves nothing behind but slices of gradients.
  if (strategy.cuda_graphs) options.accumulate = shard::Accumulate::reduced;
  options.cpu_offload = strategy.cpu_offload;
  options.prefetch = small("strategy.prefetch", strategy.prefetch);
  options.activation_checkpointing = strategy.activation_checkpointing;
  options.checkpointed_share = strategy.activations.share;
  options.kept_activations.products =
      strategy.activations.keep == ActivationsConfig::Keep::products;
  options.kept_activations.in_host = strategy.activations.offload;
  return options;
}

}  // namespace floe::strategy
