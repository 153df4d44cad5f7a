// Host memory whose pages stay where they are, so that an accelerator copies from and to it by
// itself, beside what else the host and the accelerator do.
#pragma once

#include <cstddef>

namespace floe::kernels {

// The pages of [at, at + bytes), which begins with one, for the device that is current on the
// thread. False where that cannot be had: copies are then made all the same, and waited for. Nobody
// else can start work on the device meanwhile, about 30 ms a GB for pages that are there already; a
// copy must not begin in one such range and end in another.
bool page_lock(void* at, std::size_t bytes);
void page_unlock(void* at) noexcept;

}  // namespace floe::kernels
