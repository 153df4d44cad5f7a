// What the passes of one step come to: on one rank while they run, on all ranks after the agreement.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/models/model_input.h"

namespace floe::train {

constexpr std::size_t kNumSources = 3;  // data::SourceId

// Sums over the passes of this rank. Losses stay on the device until they are asked for, so that no
// pass waits for the one before it.
class StepSums {
 public:
  void add(const PackedBatch& batch, const models::ModelInput& input,
           const at::Tensor& loss_of_source);

  // Waits for the device. Whether every loss is finite.
  bool finite();
  // For Engine::agree; after it, StepTotals reads the sums over ranks.
  std::vector<double> values(double bad_samples, bool stop);

 private:
  void fetch();

  std::vector<at::Tensor> pending_;  // [sources] each, of one pass
  std::array<double, kNumSources> loss_{}, labels_{}, samples_{};
  double tokens_ = 0;
};

// The same over all ranks.
struct StepTotals {
  explicit StepTotals(std::span<const double> sums);

  struct OfSource {
    std::string name;
    double loss = 0;  // the mean over ranks of their means over labelled tokens
    std::int64_t samples = 0;
  };
  std::vector<OfSource> sources;  // those that had a sample
  std::int64_t tokens = 0, bad_samples = 0;
  bool stop = false;             // some rank was asked to stop
  std::span<const double> rest;  // what was appended behind values()
};

}  // namespace floe::train
