// What the kernels' functions do in a build without CUDA, where nothing says that they apply.
#pragma once

#include "floe/core/error.h"

namespace floe::kernels {

[[noreturn]] inline void missing() {
  throw Error("this build has no CUDA kernels; build with FLOE_CUDA=1 ./run build");
}

}  // namespace floe::kernels
