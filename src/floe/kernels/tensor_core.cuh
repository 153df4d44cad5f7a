// The tensor cores' instructions on 16-bit values, and copies into shared memory that run beside
// the computation. All are of a whole warp. Fragments are those of PTX's mma.m16n8k16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace floe::kernels {

// Four 8x8 matrices of a left operand [16, 16] or of two right operands [16, 8] side by side.
struct Fragment {
  std::uint32_t parts[4];
};

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Lane l names a row of eight values of matrix l / 8.
__device__ inline Fragment load_matrices(const void* row) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.parts[0]), "=r"(f.parts[1]), "=r"(f.parts[2]), "=r"(f.parts[3])
               : "r"(shared_address(row))
               : "memory");
  return f;
}
// The same, each matrix turned over.
__device__ inline Fragment load_matrices_turned(const void* row) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.parts[0]), "=r"(f.parts[1]), "=r"(f.parts[2]), "=r"(f.parts[3])
               : "r"(shared_address(row))
               : "memory");
  return f;
}

// sums [16, 8] += left [16, 16] · right [16, 8], whose halves are b0 and b1.
template <class T>
__device__ void multiply_add(float (&sums)[4], const Fragment& left, std::uint32_t b0,
                             std::uint32_t b1);
template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&sums)[4], const Fragment& left,
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left.parts[0]), "r"(left.parts[1]), "r"(left.parts[2]), "r"(left.parts[3]), "r"(b0),
        "r"(b1));
}
template <>
__device__ inline void multiply_add<__half>(float (&sums)[4], const Fragment& left,
                                            std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left.parts[0]), "r"(left.parts[1]), "r"(left.parts[2]), "r"(left.parts[3]), "r"(b0),
        "r"(b1));
}

// 16 bytes from global to shared memory, zeros unless `real`; `from` must be readable either way.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}
__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kLeft` of the groups that end_of_copies closed are under way.
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace floe::kernels
