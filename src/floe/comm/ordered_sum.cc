#include "floe/comm/ordered_sum.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>

#include "floe/core/error.h"

namespace floe::comm {
namespace {

template <class T>
using SumOf =
    std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

// Calls f with a value of the element type.
template <class F>
void with_type(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kFloat: return f(float{});
    case at::kDouble: return f(double{});
    case at::kBFloat16: return f(c10::BFloat16{});
    case at::kHalf: return f(c10::Half{});
    case at::kLong: return f(std::int64_t{});
    case at::kInt: return f(std::int32_t{});
    default:
      throw CommError(
          str("tensors of dtype ", c10::toString(dtype), " cannot be summed over ranks"));
  }
}

// result[i] = left[i] + right[i], or left[i] alone, divided or as it is. Where dividing is exact, a
// product does it, which takes a fraction of the time.
template <class Sum, class Result, class Left, class Right>
void combine(Result* result, const Left* left, const Right* right, std::int64_t numel,
             int divisor) {
  // By way of a tile: the compiler knows that it overlaps nothing, as `result` may.
  constexpr std::int64_t kTile = 1024;
  std::array<Result, kTile> tile;
  const auto each = [&](const auto& rounded) {
    for (std::int64_t begin = 0; begin < numel; begin += kTile) {
      const std::int64_t count = std::min(kTile, numel - begin);
      const Left* const lefts = left + begin;
      Result* const out = tile.data();
      if (right) {
        const Right* const rights = right + begin;
        for (std::int64_t i = 0; i < count; ++i)
          out[i] = rounded(static_cast<Sum>(lefts[i]) + static_cast<Sum>(rights[i]));
      } else {
        for (std::int64_t i = 0; i < count; ++i) out[i] = rounded(static_cast<Sum>(lefts[i]));
      }
      std::copy_n(out, count, result + begin);
    }
  };
  if (divisor == 1) return each([](Sum sum) { return static_cast<Result>(sum); });
  if constexpr (std::is_floating_point_v<Sum>)
    if (std::has_single_bit(static_cast<unsigned>(divisor))) {
      const Sum part = Sum{1} / static_cast<Sum>(divisor);
      return each([part](Sum sum) { return static_cast<Result>(sum * part); });
    }
  each([by = static_cast<Sum>(divisor)](Sum sum) { return static_cast<Result>(sum / by); });
}

}  // namespace

OrderedSum::OrderedSum(at::ScalarType dtype, std::int64_t capacity_numel) : dtype_(dtype) {
  with_type(dtype, [&]<class T>(T) {
    sum_.resize(static_cast<std::size_t>(capacity_numel) * sizeof(SumOf<T>));
  });
}

void OrderedSum::begin(std::int64_t numel) {
  numel_ = numel;
  first_ = last_ = nullptr;
  summed_ = false;
}

void OrderedSum::add(const void* source) {
  if (!first_ && !summed_)
    first_ = source;
  else if (!last_)
    last_ = source;
  else
    put_together(nullptr, 1, source);
}

void OrderedSum::finish(void* destination, int divisor) {
  put_together(destination, divisor, nullptr);
}

void OrderedSum::put_together(void* destination, int divisor, const void* next) {
  with_type(dtype_, [&]<class T>(T) {
    using Sum = SumOf<T>;
    auto* sum = reinterpret_cast<Sum*>(sum_.data());
    const auto* right = static_cast<const T*>(last_);
    const auto into = [&](auto* result) {
      if (summed_)
        combine<Sum>(result, static_cast<const Sum*>(sum), right, numel_, divisor);
      else
        combine<Sum>(result, static_cast<const T*>(first_), right, numel_, divisor);
    };
    if (destination)
      into(static_cast<T*>(destination));
    else
      into(sum);
  });
  summed_ = true;
  first_ = nullptr;
  last_ = next;
}

}  // namespace floe::comm
