// The device that a test runs on.
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>
#include <string>

#include "floe/core/error.h"

namespace floe::test {

// The one GPU, which ranks share, with FLOE_TEST_DEVICE=cuda, else the CPU.
inline c10::Device device() {
  const char* name = std::getenv("FLOE_TEST_DEVICE");
  if (name == nullptr) return c10::kCPU;
  require(std::string(name) == "cuda", "FLOE_TEST_DEVICE is '", name, "', not cuda");
  return c10::Device(c10::kCUDA, 0);
}

}  // namespace floe::test
