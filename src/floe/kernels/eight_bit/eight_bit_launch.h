// The launcher behind from_eight_bit: plain pointers, aligned to 16 bytes.
#pragma once

#include "floe/kernels/launch.h"

namespace floe::kernels {

struct EightBitJob {
  // Of the matrices, as many as travel with one launch. They are consecutive; the last one
  // ends at `end`.
  static constexpr int kMostMatrices = 96;
  std::int64_t offsets[kMostMatrices];
  std::int64_t rows_before[kMostMatrices];
  std::int64_t row_numels[kMostMatrices];
  int num_matrices = 0;
  std::int64_t end = 0;
  std::int64_t slice_numel = 0, slice_bytes = 0, num_scales = 0;
  bool floats = false;  // fp8 codes, else int8
};
// `from`: all slices; `to`: the group's values. Returns at once; the work is on `stream`.
void launch_from_eight_bit(Type type, const EightBitJob& job, const void* from, void* to,
                           cudaStream_t stream);

}  // namespace floe::kernels
