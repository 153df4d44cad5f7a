#include "floe/diag/memory_points.h"

namespace floe::diag {

const char* name_of(MemoryPoint point) {
  switch (point) {
    case MemoryPoint::batch_start: return "batch_start";
    case MemoryPoint::after_forward: return "after_forward";
    case MemoryPoint::after_backward: return "after_backward";
    case MemoryPoint::before_optimizer_step: return "before_optimizer_step";
    case MemoryPoint::batch_end: return "batch_end";
  }
  return "?";
}

}  // namespace floe::diag
