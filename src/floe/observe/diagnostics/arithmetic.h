// How much arithmetic a pass over a batch needs: the multiplications and additions of its matrix
// products, forward and backward. What an implementation does beyond it (recomputed layers,
// padding) does not count, so that TFLOP/s from it can be compared.
//
// Note [Needed arithmetic]
// A matrix of n elements costs 2n for each row that it is applied to: n = tokens of the text for
// the decoder, labelled ones for its head, patches of the pictures for the tower, latents for the
// resampler. Backward costs the same again for the gradient of the input, wherever something before
// it trains (in whole layers), and once more for that of the matrix, if it trains; the tower has
// none. Attention costs 4 · pairs · width per layer, half of the pairs under a causal mask, and
// twice that in backward, from the first layer on where something trains. What trains is the set
// that is active.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/models/language_model.h"
#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {

class Arithmetic {
 public:
  // The plan of the engine that trains; it outlives this.
  Arithmetic(const shard::ShardPlan& plan, const models::LanguageModel& model);

  // Floating-point operations of forward and backward.
  double of(const PackedBatch& batch, const models::ModelInput& input) const;

 private:
  struct Costs {
    double per_token = 0, per_image = 0, per_label = 0, per_pair = 0;
  };
  Costs costs_of(std::size_t set, const models::LanguageModel& model) const;

  const shard::ShardPlan& plan_;
  std::vector<Costs> of_set_;
};

// What the maker calls a GPU, such as "NVIDIA H200"; empty for the CPU.
std::string device_name(c10::Device device);

// What a device can do at best, for MFU: dense TFLOP/s as the makers of some GPUs say, with numbers
// of 16 bits or with fp32 on its tensor cores; nothing for the others.
std::optional<double> peak_tflops(c10::Device device, bool half);

}  // namespace floe::diagnostics
