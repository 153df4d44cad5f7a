// The reference of the engine: one process that runs the ranks' batches in rank order, averages
// their gradients in that order and updates whole parameters. See invariant 1 in docs/engine.md.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/models/transformer.h"
#include "floe/optim/optimizers/adamw.h"

namespace floe::test {

struct Recipe {
  models::TransformerSize size;
  std::vector<std::string> trainable{"*"};
  std::vector<std::vector<std::string>> sets;  // that train in turn, instead; the first one begins
  std::optional<at::ScalarType> param_dtype;
  std::optional<at::ScalarType> frozen_dtype;  // 8 bits: frozen matrices are what they hold
  int micro_steps = 1;
  int batch = 2;
  double lr = 1e-3;
  std::uint64_t seed = 7;
  optim::AdamWOptions adamw;
  std::optional<double> clip;
  at::Device device = at::kCPU;
};

// A matrix after it was stored in 8 bits (at::kChar, at::kFloat8_e4m3fn) with one scale per
// row, in fp32.
at::Tensor through_eight_bit(const at::Tensor& matrix, at::ScalarType dtype);

// What rank `rank` sees in micro-step `micro` of step `step`, the same in every process.
at::Tensor batch_of(const Recipe& recipe, int step, int micro, int rank);
// Random numbers that dropout draws in that forward.
void seed_forward(int step, int micro, int rank);

class ReferenceTrainer {
 public:
  ReferenceTrainer(const Recipe& recipe, int world);

  struct Outcome {
    std::vector<double> losses;  // of each rank, mean over micro-steps
    std::map<std::string, at::Tensor> gradients;
    double gradient_norm = 0;
  };
  Outcome step();
  // Another set trains from now on, with moments of its own. `drop`: those of the set before are
  // forgotten, and its masters are what was computed with.
  void activate(std::size_t set, bool drop);
  bool trains(const std::string& name, std::size_t set) const;
  // Masters, by name.
  const std::map<std::string, at::Tensor>& weights() const { return masters_; }

 private:
  Recipe recipe_;
  int world_;
  int step_ = 0;
  std::shared_ptr<models::Transformer> model_;
  struct Moments {
    at::Tensor average, square;
    int steps = 0;
  };
  std::size_t set_ = 0;
  std::map<std::string, at::Tensor> masters_;
  std::map<std::pair<std::size_t, std::string>, Moments> moments_;  // by set and name
};

}  // namespace floe::test
