// What the passes of one step come to: on one rank while they run, on all ranks after the
// agreement.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/models/model_input.h"

namespace floe::train {

// What a rank passes along in Engine::agree, or what comes back: the sum over ranks of each number.
struct StepNumbers {
  struct OfSource {
    double ranks_with_loss = 0;  // 1 where a rank had a token with a label
    double samples = 0;
    double loss = 0;  // the rank's mean over labelled tokens; travels on the device
  };
  std::vector<OfSource> sources;  // every one there is, by number
  double tokens = 0, bad_samples = 0;
  double ranks_that_stop = 0, ranks_that_save = 0;  // because they were asked to
  std::optional<double> local_square;               // Engine::take_local_square, where measured
  std::vector<double> rank_times;                   // see stragglers.h

  // All but the losses, which Engine::agree takes from the device and puts behind.
  std::vector<double> encode() const;
  // `num_times`: how many there are of rank_times.
  static StepNumbers decode(std::span<const double> sums, std::size_t num_times);
};

// Sums over the passes of this rank. Losses stay on the device, so that no pass waits for the one
// before it.
class StepSums {
 public:
  void add(const PackedBatch& batch, const models::ModelInput& input,
           const at::Tensor& loss_of_source);

  // Sources and tokens; the caller adds the rest.
  StepNumbers numbers() const;
  // [sources], means over labelled tokens, on the device.
  at::Tensor losses() const;

 private:
  std::vector<at::Tensor> of_passes_;     // [sources] each, sums over tokens
  std::vector<double> labels_, samples_;  // by source
  double tokens_ = 0;
};

// The same over all ranks.
struct StepTotals {
  explicit StepTotals(const StepNumbers& sums);

  struct OfSource {
    std::string name;
    double loss = 0;  // the mean over ranks of their means over labelled tokens
    std::int64_t samples = 0;
  };
  std::vector<OfSource> sources;  // those that had a sample
  std::int64_t tokens = 0, bad_samples = 0;
  bool stop = false, save = false;  // some rank was asked to
  double local_square = 0;          // over ranks, where it was measured
};

}  // namespace floe::train
