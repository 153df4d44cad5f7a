#include "floe/nn/nothing_random.h"

#include <atomic>

namespace floe::nn {
namespace {

// Backward runs on autograd's own threads, so this is no thread's own.
std::atomic<int> promises{0};

}  // namespace

NothingRandom::NothingRandom() { promises.fetch_add(1); }
NothingRandom::~NothingRandom() { promises.fetch_sub(1); }

bool nothing_random() { return promises.load() > 0; }

}  // namespace floe::nn
