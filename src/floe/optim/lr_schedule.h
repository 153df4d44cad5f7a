// Learning rates over steps, as transformers' get_*_schedule_with_warmup have them.
#pragma once

#include <cstdint>
#include <string>

namespace floe::optim {

struct LrSchedule {
  enum class Kind { constant, linear, cosine };
  Kind kind = Kind::constant;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  // linear and cosine: where the rate reaches its end
  double last_factor = 0;        // linear and cosine: what it is there and afterwards

  // The factor on the base rate for the update number `step`, from 0.
  double factor(std::int64_t step) const;
};

// "constant", "linear", "cosine"; throws ConfigError otherwise.
LrSchedule::Kind lr_schedule_from_name(const std::string& name);

}  // namespace floe::optim
