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

// Sums over the passes of this rank. Losses stay on the device, so that no pass waits for the one before it.
class StepSums {
 public:
  void add(const PackedBatch& batch, const models::ModelInput& input,
           const at::Tensor& loss_of_source);

  // For Engine::agree; after it, StepTotals reads the sums over ranks.
  std::vector<double> values(double bad_samples, bool stop, bool save) const;
  // [sources], means over labelled tokens, on the device.
  at::Tensor losses() const;

 private:
  std::vector<at::Tensor> of_passes_;  // [sources] each, sums over tokens
  std::array<double, kNumSources> labels_{}, samples_{};
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
  bool stop = false, save = false;  // some rank was asked to
  std::span<const double> rest;     // what was appended to values()
};

}  // namespace floe::train
