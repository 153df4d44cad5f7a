// Precision of a step: the types it computes in, the scale of the loss in fp16, the noise of its
// gradient.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/observe/diagnostics/strategy_lines.h"
#include "floe/train/run_config.h"

namespace floe::train {

constexpr double kFirstLossScale = 65536;  // with fp16, when the configuration says nothing

// Loss scaling for fp16: gradients too small for the type are made larger, and the scale follows
// what overflows. As torch's GradScaler: halved after an overflow, doubled after `patience`
// steps without one.
class LossScale {
 public:
  // 0: none, the scale is always 1.
  explicit LossScale(double first) : scale_(first > 0 ? first : 1), active_(first > 0) {}

  double value() const { return scale_; }
  bool active() const { return active_; }
  std::int64_t good_steps() const { return good_steps_; }
  // Goes on where another one stood.
  void restore(double scale, std::int64_t good_steps) {
    if (!active_) return;
    scale_ = scale;
    good_steps_ = good_steps;
  }
  // Whether the gradients of the last step were finite on all ranks.
  void update(bool finite) {
    if (!active_) return;
    if (!finite) {
      scale_ = scale_ > 1 ? scale_ / 2 : 1;
      good_steps_ = 0;
    } else if (++good_steps_ == kPatience) {
      scale_ *= 2;
      good_steps_ = 0;
    }
  }

 private:
  static constexpr std::int64_t kPatience = 2000;

  double scale_;
  bool active_;
  std::int64_t good_steps_ = 0;
};

// How large a batch the gradient's noise justifies.
//
// Note [Gradient noise scale]
// With the squared norms of a rank's own gradient (batch b) and of the mean over W ranks (batch
// W·b), noise and signal can be told apart: |g_b|² estimates |G|² + tr(Σ)/b. The simple noise scale
// tr(Σ)/|G|² is the batch, in samples, beyond which a larger one hardly helps. Both parts are
// averaged over steps before they are divided, because each alone is noisy.
class NoiseScale {
 public:
  // `local_square`: the mean over ranks of the squared norm of a rank's own gradient; `samples`: of
  // one rank in this step.
  void add(double local_square, double global_square, double samples, int ranks) {
    if (ranks < 2 || samples <= 0) return;
    const double small = samples, large = samples * ranks;
    const double signal = (large * global_square - small * local_square) / (large - small);
    const double noise = (local_square - global_square) / (1 / small - 1 / large);
    const double weight = count_ == 0 ? 1 : kNew;
    signal_ += weight * (signal - signal_);
    noise_ += weight * (noise - noise_);
    ++count_;
  }
  // In samples; nothing until the averages mean something.
  std::optional<double> value() const {
    if (count_ < kFirst || signal_ <= 0 || noise_ < 0) return std::nullopt;
    return noise_ / signal_;
  }

 private:
  static constexpr double kNew = 0.05;
  static constexpr int kFirst = 10;

  double signal_ = 0, noise_ = 0;
  long count_ = 0;
};

// ---- which number types a run computes, stores and communicates in, and who decided it ----
//
// Note [Precision]
// `strategy.mixed_precision` decides how parameters are gathered, gradients reduced and buffers
// kept, whatever else is set. `precision.autocast` only puts torch's autocast around the forward.

// Of activations and inputs, outside of autocast.
c10::ScalarType compute_dtype(const RunConfig& config);

// With which the loss of a run in fp16 is scaled; null for other runs.
std::optional<double> first_loss_scale(const RunConfig& config);

// What a run says about its strategy; `values` are those of load_run_config. Refers to both.
diagnostics::StrategySettings strategy_settings(const RunConfig& config,
                                                const config::Value& values, int world_size = 1);

// Lines for people, each with the place a setting comes from; `values` are those of
// load_run_config.
std::vector<std::string> precision_lines(const RunConfig& config, const config::Value& values);

}  // namespace floe::train
