// torch's autocast, on while the scope lives.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace floe::nn {

// The cache of cast weights is off: it would keep a second copy of everything that is gathered.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, c10::ScalarType dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_, cache_before_;
  c10::ScalarType dtype_before_;
};

// A promise that nothing random happens on the accelerator.
//
// A recomputation repeats the random numbers of the first run, for which it keeps the generator's state.
// While a stream is being recorded that state cannot be asked for; where nothing is dropped out, nobody
// needs it.

// While one lives, on any thread: forwards draw no random numbers of an accelerator.
class NothingRandom {
 public:
  NothingRandom();
  ~NothingRandom();
  NothingRandom(const NothingRandom&) = delete;
  NothingRandom& operator=(const NothingRandom&) = delete;
};

bool nothing_random();

}  // namespace floe::nn
