// Plans from YAML, for tests.
#pragma once

#include <string>
#include <vector>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/plan/report.h"

namespace floe::test {

// Three layers of width 4 in fp32 on 4 ranks. Elements: a layer has 244 and its adapter 13; embed
// and head 40 each, positions 24, norm 8, all too small for units of their own: the root has 112.
inline plan::PlanConfig small_config(const std::vector<std::string>& changes = {}) {
  config::Value tree = config::parse_yaml(R"(
world: 4
model: {type: transformer, vocab: 10, dim: 4, layers: 3, heads: 2, context: 6, adapter: 1}
train: {trainable: null}
strategy: {units: [DecoderLayer], mixed_precision: {param: fp32, reduce: fp32, buffer: fp32}}
)",
                                          "small.yaml");
  for (const std::string& change : changes) config::apply(config::parse_override(change), tree);
  return config::load<plan::PlanConfig>(tree).config;
}

inline plan::PlanReport planned(const std::vector<std::string>& changes = {}) {
  return plan::make_report(plan::subject_of(small_config(changes)));
}

}  // namespace floe::test
