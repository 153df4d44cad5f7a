// Attention of packed spans on tensor cores.
//
// Note [Attention by tiles]
// A block of four warps has a tile of kTile rows (of queries, or in the backward for keys and
// values of keys) of one head of one span, 16 rows per warp, and goes through the tiles of the
// other side that these rows meet, the next ones copied meanwhile. Its own rows stay in registers
// where these suffice. Scores live in registers only: as sums of one product they are, pairwise
// rounded, the left operand of the next. Tiles lie in shared memory with 16 bytes between rows,
// which lets eight rows be read at once. The backward computes the scores again from the logsumexp
// of each row, once for the gradients of queries and once for those of keys and values: seven
// products instead of five, but every gradient is summed in one place, in one order, and written
// once, wherever it is to lie.
//
// What a warp's rows meet of a tile are squares of 16 columns, those of which some are visible. No
// branch lies inside of a square's products: what they need is then read while others multiply.
//
// Scores are in base 2: score · log2(e) is what exp2 takes.
#pragma once

#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"
#include "floe/kernels/tensor_core.cuh"

namespace floe::kernels {

constexpr float kLog2e = 1.4426950408889634f;
constexpr int kTile = 64;
constexpr int kWarps = kTile / 16;
constexpr int kThreads = 32 * kWarps;

// Shared memory for kTile rows of kDim values.
template <class T, int kDim>
struct Tile {
  static constexpr int kStride = kDim + Pack<T>::kSize;
  T values[kTile * kStride];

  __device__ T* at(int row, int column) { return values + row * kStride + column; }
  __device__ const T* at(int row, int column) const { return values + row * kStride + column; }

  // The rows [row, row + 16) and columns [column, column + 16) as a left operand.
  __device__ Fragment left(int row, int column) const {
    const int lane = threadIdx.x % 32;
    return load_matrices(at(row + lane % 16, column + lane / 16 * 8));
  }
  // The same square, turned over, as two right operands: of products with these rows.
  __device__ Fragment right_turned(int row, int column) const {
    const int lane = threadIdx.x % 32;
    return load_matrices(at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
  }
  // As it lies, as two right operands: of sums over these rows.
  __device__ Fragment right(int row, int column) const {
    const int lane = threadIdx.x % 32;
    return load_matrices_turned(at(row + lane % 16, column + lane / 16 * 8));
  }
};

// One head's rows of a packed tensor, from a span's first on.
template <class T>
struct HeadRows {
  T* first;
  std::int64_t stride;
  __device__ HeadRows(const HeadsOf& heads, std::int64_t token, int head)
      : first(static_cast<T*>(heads.data) + token * heads.token_stride + head * heads.head_stride),
        stride(heads.token_stride) {}
  __device__ T* row(int i) const { return first + i * stride; }
};

// How threads go through rows of kDim values in packs: so many beside each other have a row.
template <class T, int kDim>
struct Lanes {
  static constexpr int kSize = Pack<T>::kSize, kPacks = kDim / kSize;
  static constexpr int kPerRow = kPacks % 8 == 0 ? kPacks : 4;

  // f(row, column) for every pack of kRows rows that this one of kMany threads has, told by numbers
  // that are known when this is compiled, to which the thread's own row and column are added: so an
  // address is a sum with a constant.
  template <int kRows, int kMany, class F>
  static __device__ void for_each(const F& f) {
    constexpr int kAtOnce = kMany / kPerRow;
    static_assert(kRows % kAtOnce == 0);
#pragma unroll
    for (int row = 0; row < kRows; row += kAtOnce)
#pragma unroll
      for (int pack = 0; pack < kPacks; pack += kPerRow)
        if (pack + kPerRow <= kPacks || pack + static_cast<int>(threadIdx.x) % kPerRow < kPacks)
          f(row, pack * kSize);
  }
  template <int kMany>
  static __device__ int row() {
    return static_cast<int>(threadIdx.x) % kMany / kPerRow;
  }
  static __device__ int column() { return static_cast<int>(threadIdx.x) % kPerRow * kSize; }
};

// Starts to copy the rows from `first` on, zeros from `length` on.
template <class T, int kDim>
__device__ void start_copy(Tile<T, kDim>& to, const HeadRows<T>& from, int first, int length) {
  using Way = Lanes<T, kDim>;
  const int own_row = Way::template row<kThreads>(), rows = length - first - own_row;
  const std::uint32_t address = shared_address(to.at(own_row, Way::column()));
  const T* const source = from.row(first + own_row) + Way::column();
  Way::template for_each<kTile, kThreads>([&](int row, int column) {
    const bool real = row < rows;
    copy_async(address + (row * to.kStride + column) * static_cast<int>(sizeof(T)),
               real ? source + row * from.stride + column : from.first, real);
  });
}

template <class T>
__device__ std::uint32_t rounded(float low, float high) {
  union {
    T halves[2];
    std::uint32_t both;
  } pair;
  pair.halves[0] = from_float<T>(low), pair.halves[1] = from_float<T>(high);
  return pair.both;
}
// Sums of two neighbouring products [16, 8] as a left operand [16, 16].
template <class T>
__device__ Fragment as_left(const float (&low)[4], const float (&high)[4]) {
  return {{rounded<T>(low[0], low[1]), rounded<T>(low[2], low[3]), rounded<T>(high[0], high[1]),
           rounded<T>(high[2], high[3])}};
}

// sums [16, 16] += left · right
template <class T>
__device__ void multiply_add_both(float (*sums)[4], const Fragment& left, const Fragment& right) {
  multiply_add<T>(sums[0], left, right.parts[0], right.parts[1]);
  multiply_add<T>(sums[1], left, right.parts[2], right.parts[3]);
}

// Over the four lanes that have a row's columns.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

// Writes this warp's 16 rows of `sums`, those before `length`, by way of its rows of a tile that
// nobody reads any more. The two factors are for the rows g and g + 8 that a lane has.
template <class T, int kDim>
__device__ void write_rows(const float (&sums)[kDim / 8][4], float2 factors, Tile<T, kDim>& by,
                           const HeadRows<T>& to, int first, int length) {
  using Way = Lanes<T, kDim>;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    const int column = n * 8 + lane % 4 * 2;
    *reinterpret_cast<std::uint32_t*>(by.at(warp_row + lane / 4, column)) =
        rounded<T>(sums[n][0] * factors.x, sums[n][1] * factors.x);
    *reinterpret_cast<std::uint32_t*>(by.at(warp_row + lane / 4 + 8, column)) =
        rounded<T>(sums[n][2] * factors.y, sums[n][3] * factors.y);
  }
  __syncwarp();
  const int own_row = warp_row + Way::template row<32>(), rows = length - first - own_row;
  const T* const source = by.at(own_row, Way::column());
  T* const target = to.row(first + own_row) + Way::column();
  Way::template for_each<16, 32>([&](int row, int column) {
    if (row < rows)
      store(target + row * to.stride + column, load(source + row * by.kStride + column));
  });
}

struct Span {
  int begin, length;
  __device__ Span(const SpansOf& spans, int index)
      : begin(spans.offsets[index]), length(spans.offsets[index + 1] - spans.offsets[index]) {}
  __device__ int tiles() const { return (length + kTile - 1) / kTile; }
};

// This warp's 16 rows of a tile as left operands, for a loop that goes through them many times.
template <class T, int kDim>
struct WarpRows {
  Fragment parts[kDim / 16];
  __device__ void read(const Tile<T, kDim>& tile) {
    for (int d = 0; d < kDim / 16; ++d) parts[d] = tile.left(threadIdx.x / 32 * 16, d * 16);
  }
};

// Of the other side: a pair of tiles for this step and one for the next. The block's own rows come
// by way of the latter.
template <class T, int kDim>
struct ForwardMemory {
  Tile<T, kDim> others[2][2];
};

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 80 ? 4 : 3)
    attention_kernel(AttentionShape shape, HeadsOf queries, HeadsOf keys, HeadsOf values,
                     HeadsOf mixed, float* logsumexp) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& memory = *reinterpret_cast<ForwardMemory<T, kDim>*>(shared_bytes);
  const int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, first = tile * kTile;
  const Span span(shape.queries, blockIdx.z), seen(shape.keys, blockIdx.z);
  if (first >= span.length) return;
  const int shared_head = head / shape.queries_per_key;
  const HeadRows<T> k(keys, seen.begin, shared_head), v(values, seen.begin, shared_head);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool works = first + warp * 16 < span.length;  // else none of its rows is real
  const float scale = shape.scale * kLog2e;
  const bool slopes = shape.slopes != nullptr;
  const float slope = slopes ? shape.slopes[head] * kLog2e : 0;
  const int row = first + warp * 16 + lane / 4;  // this lane's first; the other is 8 below
  const int steps = shape.causal ? min(tile + 1, seen.tiles()) : seen.tiles();
  const auto start_step = [&](int step) {
    start_copy(memory.others[step % 2][0], k, step * kTile, seen.length);
    start_copy(memory.others[step % 2][1], v, step * kTile, seen.length);
    end_of_copies();
  };

  WarpRows<T, kDim> q;
  start_copy(memory.others[1][0], HeadRows<T>(queries, span.begin, head), first, span.length);
  if (steps > 0) start_step(0);
  end_of_copies();
  wait_for_copies<0>();
  __syncthreads();
  q.read(memory.others[1][0]);

  float sums[kDim / 8][4] = {};
  float greatest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();
    if (step + 1 < steps) start_step(step + 1);
    if (!works) continue;
    const auto& others = memory.others[step % 2];
    const int start = step * kTile;
    const bool diagonal = shape.causal && step == tile;
    const int real = min((seen.length - start + 15) / 16, kTile / 16);
    const int squares = diagonal ? min(warp + 1, real) : real;
    float scores[kTile / 8][4] = {};
    const auto score = [&](int n) {
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d)
        multiply_add_both<T>(scores + 2 * n, q.parts[d], others[0].right_turned(n * 16, d * 16));
    };
    if (squares == kTile / 16) {
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n) score(n);
    } else {
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n)
        if (n < squares) score(n);
    }
    if (slopes) {
      const float away = -slope * static_cast<float>(row - start - lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          scores[n][i] = fmaf(scores[n][i], scale,
                              fmaf(slope, static_cast<float>(n * 8 + i % 2 - i / 2 * 8), away));
    } else {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] *= scale;
    }
    if (diagonal || start + kTile > seen.length) {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = start + n * 8 + lane % 4 * 2 + i % 2;
          if (key >= seen.length || (shape.causal && key > row + i / 2 * 8))
            scores[n][i] = -INFINITY;
        }
    }
    float most[2] = {greatest[0], greatest[1]};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = quad_max(most[half]);
      const float shrink = power_of_two(greatest[half] - most[half]);
      greatest[half] = most[half];
      total[half] *= shrink;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        sums[n][2 * half] *= shrink, sums[n][2 * half + 1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = power_of_two(scores[n][i] - greatest[i / 2]);
        total[i / 2] += scores[n][i];
      }
    const auto mix = [&](int n) {
      const Fragment weights = as_left<T>(scores[2 * n], scores[2 * n + 1]);
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d)
        multiply_add_both<T>(sums + 2 * d, weights, others[1].right(n * 16, d * 16));
    };
    if (squares == kTile / 16) {
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n) mix(n);
    } else {
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n)
        if (n < squares) mix(n);
    }
  }
  __syncthreads();
  total[0] = quad_sum(total[0]), total[1] = quad_sum(total[1]);
  const float2 factors{steps > 0 ? 1 / total[0] : 0, steps > 0 ? 1 / total[1] : 0};
  write_rows<T, kDim>(sums, factors, memory.others[0][0], HeadRows<T>(mixed, span.begin, head),
                      first, span.length);
  if (!logsumexp || lane % 4 != 0) return;
  logsumexp += head * shape.tokens + span.begin;
  for (int half = 0; half < 2; ++half)
    if (row + half * 8 < span.length)
      logsumexp[row + half * 8] = steps > 0 ? greatest[half] + log2f(total[half]) : 0;
}

// Note [Attention's gradients]
// With P the weights and ⟨·,·⟩ over features: δ = ⟨dO, O⟩ per query, dS = P ∘ (⟨dO, V⟩ - δ), and
// then dQ = scale · dS · K, dK = scale · dSᵀ · Q, dV = Pᵀ · dO. Rows are queries with the pair (Q,
// dO) that meets tiles of (K, V), or keys with (K, V) that meets tiles of (Q, dO): the two products
// of a pair are the same, and what is summed from them is dS times the first of the other pair, for
// keys also P times the second.
//
// The block's own pair stays in registers but for the widest heads of keys, whose two gradients
// fill these: then it stays in shared memory.
template <int kDim, bool kKeys>
constexpr bool kPairInRegisters = !kKeys || kDim <= 96;

template <class T, int kDim, bool kKeys>
struct BackwardMemory {
  static constexpr int kPairs = kPairInRegisters<kDim, kKeys> ? 2 : 3;
  // Of the other side's pairs this step's and the next one's; then the own one, or instead of it
  // the next one's, until it has been read.
  Tile<T, kDim> pairs[kPairs][2];
  float logsumexp[2][kTile], delta[2][kTile];
};

template <class T, int kDim, bool kKeys>
__global__ void __launch_bounds__(kThreads, kPairInRegisters<kDim, kKeys> ? 3 : 2)
    attention_backward_kernel(AttentionShape shape, HeadsOf queries, HeadsOf keys, HeadsOf values,
                              HeadsOf mixed, HeadsOf mixed_grad, const float* logsumexp,
                              float* delta, HeadsOf first_grad, HeadsOf second_grad) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& memory = *reinterpret_cast<BackwardMemory<T, kDim, kKeys>*>(shared_bytes);
  const int tile = kKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  const int own_head = blockIdx.y, first = tile * kTile;
  const Span query_span(shape.queries, blockIdx.z), key_span(shape.keys, blockIdx.z);
  const Span own = kKeys ? key_span : query_span, other = kKeys ? query_span : key_span;
  if (first >= own.length) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = first + warp * 16 + lane / 4;
  const bool works = first + warp * 16 < own.length;
  const float scale = shape.scale * kLog2e;

  // Which tiles are met: all, or when causal for queries the keys before them and for keys the
  // queries from them on; of every head that looks at these keys.
  const int first_tile = kKeys && shape.causal ? min(tile, other.tiles()) : 0;
  const int last_tile = !kKeys && shape.causal ? min(tile + 1, other.tiles()) : other.tiles();
  const int per_head = last_tile - first_tile;
  const int steps = kKeys ? per_head * shape.queries_per_key : per_head;
  struct Met {
    int tile, head;  // the queries' head
  };
  const auto behind = [&](const Met& met) -> Met {
    return met.tile + 1 < last_tile ? Met{met.tile + 1, met.head} : Met{first_tile, met.head + 1};
  };
  Met now{first_tile, kKeys ? own_head * shape.queries_per_key : own_head}, next = now;
  const auto start_step = [&](int step) {
    auto& others = memory.pairs[step % 2];
    const int start = next.tile * kTile, head = next.head;
    if constexpr (kKeys) {
      start_copy(others[0], HeadRows<T>(queries, other.begin, head), start, other.length);
      start_copy(others[1], HeadRows<T>(mixed_grad, other.begin, head), start, other.length);
      if (threadIdx.x < kTile) {
        const int i = start + static_cast<int>(threadIdx.x);
        const bool real = i < other.length;  // a query that is not looks at nothing
        const std::int64_t place = head * shape.tokens + other.begin + i;
        memory.logsumexp[step % 2][threadIdx.x] = real ? logsumexp[place] : INFINITY;
        memory.delta[step % 2][threadIdx.x] = real ? delta[place] : 0;
      }
    } else {
      const int shared_head = head / shape.queries_per_key;
      start_copy(others[0], HeadRows<T>(keys, other.begin, shared_head), start, other.length);
      start_copy(others[1], HeadRows<T>(values, other.begin, shared_head), start, other.length);
    }
    end_of_copies();
    next = behind(next);
  };

  constexpr bool kInRegisters = kPairInRegisters<kDim, kKeys>;
  auto& own_pair = memory.pairs[memory.kPairs - 1];
  start_copy(own_pair[0], HeadRows<T>(kKeys ? keys : queries, own.begin, own_head), first,
             own.length);
  start_copy(own_pair[1], HeadRows<T>(kKeys ? values : mixed_grad, own.begin, own_head), first,
             own.length);
  if (steps > 0) start_step(0);
  end_of_copies();

  // O for δ; dO is in shared memory by then.
  constexpr int kSize = Pack<T>::kSize, kOfLane = kKeys ? 1 : (kDim / kSize + 3) / 4;
  Pack<T> own_mixed[2][kOfLane];
  const auto for_own_packs = [&](const auto& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int p = 0; p < kOfLane; ++p)
        if (row + half * 8 < own.length && p * 4 + lane % 4 < kDim / kSize)
          f(half, p, (p * 4 + lane % 4) * kSize);
  };
  if constexpr (!kKeys) {
    const HeadRows<T> o(mixed, own.begin, own_head);
    for_own_packs([&](int half, int p, int column) {
      own_mixed[half][p] = load(o.row(row + half * 8) + column);
    });
  }

  WarpRows<T, kInRegisters ? kDim : 16> own_rows[2];
  if constexpr (kInRegisters) {
    wait_for_copies<0>();
    __syncthreads();
    for (int i = 0; i < 2; ++i) own_rows[i].read(own_pair[i]);
  }
  float own_logsumexp[2] = {}, own_delta[2] = {};
  if constexpr (!kKeys) {
    for_own_packs([&](int half, int p, int column) {
      const Pack<T> grad = load(own_pair[1].at(row - first + half * 8, column));
#pragma unroll
      for (int e = 0; e < kSize; ++e)
        own_delta[half] += to_float(own_mixed[half][p].values[e]) * to_float(grad.values[e]);
    });
    const std::int64_t place = own_head * shape.tokens + own.begin;
    for (int half = 0; half < 2; ++half) {
      own_delta[half] = quad_sum(own_delta[half]);
      const int i = row + half * 8;
      if (i >= own.length) continue;
      own_logsumexp[half] = logsumexp[place + i];
      if (lane % 4 == 0) delta[place + i] = own_delta[half];
    }
  }
  const auto left = [&](int of_pair, int d) {
    if constexpr (kInRegisters)
      return own_rows[of_pair].parts[d];
    else
      return own_pair[of_pair].left(warp * 16, d * 16);
  };

  float first_sums[kDim / 8][4] = {}, second_sums[kKeys ? kDim / 8 : 1][4] = {};
  for (int step = 0; step < steps; ++step, now = behind(now)) {
    wait_for_copies<0>();
    __syncthreads();
    if (step + 1 < steps) start_step(step + 1);
    if (!works) continue;
    const auto& others = memory.pairs[step % 2];
    const int start = now.tile * kTile;
    const bool diagonal = shape.causal && start == first;
    // Columns that a row does not meet: for queries the keys from this one on, for keys the queries
    // before it. Queries that are not real need none, whose weights are zero by their logsumexp.
    constexpr int kAll = 1 << 30;
    int limits[2];
    for (int half = 0; half < 2; ++half) {
      const int place = row + half * 8 - start;
      limits[half] = kKeys ? (diagonal ? place : -kAll)
                           : min(diagonal ? place + 1 : kAll, other.length - start);
    }
    const float slope = shape.slopes ? shape.slopes[now.head] * kLog2e : 0;
    const int real = min((other.length - start + 15) / 16, kTile / 16);
    const int until = diagonal && !kKeys ? min(warp + 1, real) : real;
    for (int square = diagonal && kKeys ? warp : 0; square < until; ++square) {
      float scores[2][4] = {}, slopes[2][4] = {};
      const int columns = square * 16 + lane % 4 * 2;  // this lane's first
      const auto away = static_cast<float>(row - start - columns);
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        multiply_add_both<T>(scores, left(0, d), others[0].right_turned(square * 16, d * 16));
        multiply_add_both<T>(slopes, left(1, d), others[1].right_turned(square * 16, d * 16));
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int beside = n * 8 + i % 2, column = columns + beside;
          const float ahead = away + static_cast<float>(i / 2 * 8 - beside);
          const float sum = kKeys ? memory.logsumexp[step % 2][column] : own_logsumexp[i / 2];
          const float mean = kKeys ? memory.delta[step % 2][column] : own_delta[i / 2];
          const float weight =
              power_of_two(scores[n][i] * scale - slope * (kKeys ? -ahead : ahead) - sum);
          const bool hidden = kKeys ? column < limits[i / 2] : column >= limits[i / 2];
          scores[n][i] = hidden ? 0 : weight;
          slopes[n][i] = scores[n][i] * (slopes[n][i] - mean);
        }
      const Fragment slope_left = as_left<T>(slopes[0], slopes[1]);
      const Fragment weight_left = as_left<T>(scores[0], scores[1]);
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        multiply_add_both<T>(first_sums + 2 * d, slope_left, others[0].right(square * 16, d * 16));
        if constexpr (kKeys)
          multiply_add_both<T>(second_sums + 2 * d, weight_left,
                               others[1].right(square * 16, d * 16));
      }
    }
  }
  wait_for_copies<0>();  // where there was no step to do it
  __syncthreads();
  write_rows<T, kDim>(first_sums, {shape.scale, shape.scale}, memory.pairs[0][0],
                      HeadRows<T>(first_grad, own.begin, own_head), first, own.length);
  if constexpr (kKeys)
    write_rows<T, kDim>(second_sums, {1, 1}, memory.pairs[0][1],
                        HeadRows<T>(second_grad, own.begin, own_head), first, own.length);
}

}  // namespace floe::kernels
