// The scale of the loss in fp16: gradients too small for the type are made larger, and the scale
// follows what overflows. As torch's GradScaler: halved after an overflow, doubled after kPatience
// steps without one.
#pragma once

#include <cstdint>

namespace floe::train {

constexpr double kFirstLossScale = 65536;  // with fp16, when the configuration says nothing

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

}  // namespace floe::train
