// How large a batch the gradient's noise justifies.
//
// Note [Gradient noise scale]
// With the squared norms of a rank's own gradient (batch b) and of the mean over W ranks (batch
// W·b), noise and signal can be told apart: |g_b|² estimates |G|² + tr(Σ)/b. The simple noise scale
// tr(Σ)/|G|² is the batch, in samples, beyond which a larger one hardly helps. Both parts are
// averaged over steps before they are divided, because each alone is noisy.
#pragma once

#include <optional>

namespace floe::train {

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

}  // namespace floe::train
