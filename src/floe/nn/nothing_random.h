// A promise that nothing random happens on the accelerator.
//
// A recomputation repeats the random numbers of the first run, for which it keeps the generator's state.
// While a stream is being recorded that state cannot be asked for; where nothing is dropped out, nobody
// needs it.
#pragma once

namespace floe::nn {

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
