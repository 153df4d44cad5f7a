// What the programs of bench/engine.py, phases.py and h200_phases.py have in common: the model, the
// sets and the batches that a CONFIG.json asks every system for.
#pragma once

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/shard/options.h"

namespace floe::bench {

using Json = nlohmann::json;

inline models::TransformerSize size_from(const Json& json) {
  models::TransformerSize size;
  size.vocab = json.at("vocab");
  size.dim = json.at("dim");
  size.layers = json.at("layers");
  size.heads = json.at("heads");
  size.context = json.at("context");
  size.adapter = json.at("adapter");
  size.tied = json.at("tied");
  return size;
}

inline shard::Strategy strategy_from(const std::string& name) {
  for (const shard::StrategyEntry& known : shard::kStrategies)
    if (name == known.name) return known.strategy;
  throw ConfigError("strategy '" + name + "' is unknown");
}

inline shard::Rest rest_from(const std::string& name) {
  for (const auto known : {shard::Rest::keep, shard::Rest::offload, shard::Rest::drop})
    if (name == name_of(known)) return known;
  throw ConfigError("rest '" + name + "' is not one of keep, offload, drop");
}

// With "alone" only that set is announced: the rest of the model is frozen for good.
inline std::vector<shard::ParameterSet> sets_from(const Json& json) {
  std::vector<shard::ParameterSet> sets;
  for (const Json& set : json.at("sets"))
    if (json.at("alone").is_null() || json.at("alone") == set.at("name"))
      sets.push_back({set.at("name"), set.at("patterns"), rest_from(json.at("rest"))});
  return sets;
}

// Token ids [B, T] of a batch; bench/torch_twin/rank.py has the same formula.
inline at::Tensor token_batch(const Json& json, std::int64_t batch, int rank) {
  const std::int64_t vocab = json.at("model").at("vocab");
  at::Tensor ids = at::empty({json.at("batch"), json.at("tokens")}, at::kLong);
  auto* out = ids.mutable_data_ptr<std::int64_t>();
  auto state = static_cast<std::uint32_t>(1000 * batch + rank + 1);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    state = state * 1664525U + 1013904223U;
    out[i] = (state >> 8U) % vocab;
  }
  return ids;
}

// Of all threads of this process.
inline double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Clock {
 public:
  // Seconds since the last call.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace floe::bench
