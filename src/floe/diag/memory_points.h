// Where in a step memory is looked at.
#pragma once

namespace floe::diag {

enum class MemoryPoint {
  batch_start,
  after_forward,
  after_backward,
  before_optimizer_step,
  batch_end
};
const char* name_of(MemoryPoint point);

}  // namespace floe::diag
