// What bench_h200 does; each task is a file of its own and gives what it measured as JSON.
#pragma once

#include <nlohmann/json.hpp>

namespace floe::bench {

// Steps of OpenFlamingo's training with random weights, or of adapters beside a language model:
// their times and memory (h200.py, h200_lora.py).
nlohmann::json measure_steps(const nlohmann::json& config);
// Losses of steps that begin from given weights, a new batch each (h200_curves.py).
nlohmann::json train_curve(const nlohmann::json& config);
// Gradients of the gates for one batch, several times over (h200_curves.py).
nlohmann::json repeat_gradients(const nlohmann::json& config);
// Gradients of one batch in several arithmetics against those of an exact one, by layer: cosine and
// ratio of norms (h200_fp8_quality.py).
nlohmann::json match_gradients(const nlohmann::json& config);
// Two sets of parameters in turn: what a switch costs (h200_phases.py).
nlohmann::json measure_phases(const nlohmann::json& config);

// What the plan says of such steps, without a GPU (plan.py).
nlohmann::json plan_step(const nlohmann::json& config);
// The three fastest strategies that fit, as floe plan --best finds them (plan_best.py,
// h200_best.py).
nlohmann::json best_strategies(const nlohmann::json& config);

}  // namespace floe::bench
