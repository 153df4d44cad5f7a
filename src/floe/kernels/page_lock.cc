#include "floe/kernels/page_lock.h"

#ifdef FLOE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace floe::kernels {

#ifdef FLOE_CUDA

bool page_lock(void* at, std::size_t bytes) {
  if (cudaHostRegister(at, bytes, cudaHostRegisterPortable) == cudaSuccess) return true;
  cudaGetLastError();  // told by the result, and by nothing later
  return false;
}

void page_unlock(void* at) noexcept {
  if (cudaHostUnregister(at) != cudaSuccess) cudaGetLastError();
}

#else

bool page_lock(void*, std::size_t) { return false; }
void page_unlock(void*) noexcept {}

#endif

}  // namespace floe::kernels
