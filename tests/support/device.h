// The device that a test runs on.
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>
#include <string>

namespace floe::test {

// What FLOE_TEST_DEVICE names ("cuda"), else the CPU. Ranks share the one GPU.
inline c10::Device device() {
  const char* name = std::getenv("FLOE_TEST_DEVICE");
  if (name == nullptr) return c10::kCPU;
  const c10::Device device{std::string(name)};
  return device.is_cuda() ? c10::Device(c10::kCUDA, 0) : device;
}

}  // namespace floe::test
