// What a configuration means for one rank, in numbers, before anything runs. Built from a model
// without memory, by the same planner that the engine uses.
//
//   const PlanReport report = make_report(subject_of(load_plan_config(layers).config));
//   std::cout << to_text(report);
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "floe/models/transformer.h"
#include "floe/plan/plan_config.h"
#include "floe/shard/plan/plan.h"

namespace floe::plan {

// What a rank holds in a step, as the engine's formula has it, and where.
struct Holdings {
  shard::HeldBytes held;                // for this optimizer
  std::int64_t resident = 0;            // of held.frozen_slices: whole copies
  std::int64_t host_between_steps = 0;  // of held.between_steps(): in host memory
  std::int64_t host_peak = 0;           // of held.peak()
  // Beside all that: masters, state and averages of sets that rest, in host memory.
  std::int64_t store = 0;
};

// What it comes to while one of several sets trains and the others, which all have trained, rest.
struct PhaseReport {
  shard::ParameterSet set;
  std::int64_t trainable_numel = 0;
  Holdings holdings;
  shard::MovedBytes moved;
};

// Groups whose elements do not divide into slices of whole 128 bytes; zeros fill the last ones.
struct Padding {
  std::int64_t num_groups = 0, numel = 0;
};

// What is planned.
struct PlanSubject {
  std::string type;                                   // of the model, in words
  std::shared_ptr<torch::nn::Module> model;           // deferred
  std::optional<std::vector<std::string>> trainable;  // patterns; null: what requires gradients
  std::vector<shard::ParameterSet> sets;              // instead: several that train in turn
  StrategyConfig strategy;
  std::string optimizer = "adamw";
  int values_per_element = 2;  // that it keeps of what trains
  bool averages = false;       // an average of every trainable element is kept, too
  int world_size = 1;
  int passes_per_update = 1;

  // "adamw and average"
  std::string state_words() const { return averages ? optimizer + " and average" : optimizer; }
};

struct PlanReport {
  PlanSubject subject;  // the plans refer to its model
  std::int64_t trainable_numel = 0, frozen_numel = 0;

  // Of several sets, all of the following while the one trains that needs most memory.
  shard::ShardPlan plan;
  Holdings holdings;
  shard::MovedBytes moved;
  Padding padding;
  std::vector<PhaseReport> phases;  // by set; none where there is one set

  // The same model with every rank holding all of it.
  Holdings unsharded_holdings;
  shard::MovedBytes unsharded_moved;
};

models::TransformerSize transformer_size_of(const ModelConfig& model);

// Which parameters train: the configuration's patterns, else the model's own rule (adapters where
// there are some, else everything: null).
std::optional<std::vector<std::string>> trainable_patterns(const PlanConfig& config);

PlanSubject subject_of(const PlanConfig& config);
// Builds the model without memory; reads only the headers of its files.
PlanSubject subject_of(const RunPlanConfig& config);

// Throws ConfigError for units, patterns, sizes and budgets that cannot be.
PlanReport make_report(PlanSubject subject);

// Tables for people, at most about 100 columns wide.
std::string to_text(const PlanReport& report);
// The same for programs; every key is always there. See docs/plan.md.
nlohmann::ordered_json to_json(const PlanReport& report);

// A line of the table of units: those of one class whose names differ only in a number and whose
// groups are equal.
struct UnitRow {
  std::vector<std::size_t> units;  // of the plan, in order
  std::string label;               // "embed", "layers.0 … 31", "layers.0 … 31.mlp"
};

// In the order of their first units.
std::vector<UnitRow> unit_rows(const shard::ShardPlan& plan);

}  // namespace floe::plan
