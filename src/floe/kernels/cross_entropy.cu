#include <cfloat>

#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

constexpr int kThreads = 512;

// The sum of exp(score - most), with the greatest score seen so far.
struct LogSum {
  float most = -FLT_MAX, sum = 0;

  __device__ void add(float score) {
    if (score > most) {
      sum = sum * __expf(most - score) + 1.0f;
      most = score;
    } else {
      sum += __expf(score - most);
    }
  }
  __device__ void add(const LogSum& other) {
    const float top = fmaxf(most, other.most);
    sum = sum * __expf(most - top) + other.sum * __expf(other.most - top);
    most = top;
  }
};

__device__ LogSum block_log_sum(LogSum mine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    LogSum other;
    other.most = __shfl_xor_sync(0xffffffffU, mine.most, distance);
    other.sum = __shfl_xor_sync(0xffffffffU, mine.sum, distance);
    mine.add(other);
  }
  __shared__ float most[kThreads / 32], sum[kThreads / 32];
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = mine.most, sum[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  LogSum all;
  for (int w = 0; w < kThreads / 32; ++w) {
    LogSum part;
    part.most = most[w];
    part.sum = sum[w];
    all.add(part);
  }
  return all;
}

// One block per row. kSize: values per access, 1 where rows are not aligned.
template <class T, int kSize>
__global__ void cross_entropy_kernel(LossShape shape, T* logits, const std::int64_t* targets,
                                     const float* weights, float* losses, float* weighted) {
  T* row = logits + static_cast<std::int64_t>(blockIdx.x) * shape.vocabulary;
  const std::int64_t target = targets[blockIdx.x];
  const auto for_row = [&](const auto& body) {
    for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * kSize; i < shape.vocabulary;
         i += std::int64_t{kThreads} * kSize)
      body(i);
  };
  LogSum mine;
  for_row([&](std::int64_t i) {
    if constexpr (kSize == 1) {
      mine.add(shape.scale * to_float(row[i]));
    } else {
      const Pack<T> pack = load(row + i);
      for (int k = 0; k < kSize; ++k) mine.add(shape.scale * to_float(pack.values[k]));
    }
  });
  const float target_score = shape.scale * to_float(row[target]);
  const LogSum all = block_log_sum(mine);  // after it every thread has read the target's score
  const float log_z = all.most + logf(all.sum);
  const float weight = weights[blockIdx.x];
  if (threadIdx.x == 0) {
    const float loss = log_z - target_score;
    losses[blockIdx.x] = loss;
    weighted[blockIdx.x] = weight * (loss + shape.z_loss * log_z * log_z);
  }
  if (!shape.with_gradient) return;
  const float share = weight * shape.scale, slope = 1.0f + 2.0f * shape.z_loss * log_z;
  const auto gradient = [&](T logit, std::int64_t i) {
    const float p = slope * __expf(shape.scale * to_float(logit) - log_z);
    return from_float<T>(share * (i == target ? p - 1.0f : p));
  };
  for_row([&](std::int64_t i) {
    if constexpr (kSize == 1) {
      row[i] = gradient(row[i], i);
    } else {
      Pack<T> pack = load(row + i);
      for (int k = 0; k < kSize; ++k) pack.values[k] = gradient(pack.values[k], i + k);
      store(row + i, pack);
    }
  });
}

}  // namespace

void launch_cross_entropy(Type type, const LossShape& shape, void* logits,
                          const std::int64_t* targets, const float* weights, float* losses,
                          float* weighted, cudaStream_t stream) {
  if (shape.rows == 0) return;
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(shape.rows);
    if (shape.vocabulary % Pack<T>::kSize == 0)
      cross_entropy_kernel<T, Pack<T>::kSize><<<blocks, kThreads, 0, stream>>>(
          shape, static_cast<T*>(logits), targets, weights, losses, weighted);
    else
      cross_entropy_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(
          shape, static_cast<T*>(logits), targets, weights, losses, weighted);
  });
}

}  // namespace floe::kernels
