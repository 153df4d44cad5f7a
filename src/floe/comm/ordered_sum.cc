#include "floe/comm/ordered_sum.h"

#include <c10/core/ScalarType.h>

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

}  // namespace

OrderedSum::OrderedSum(at::ScalarType dtype, std::int64_t capacity_numel) : dtype_(dtype) {
  with_type(dtype, [&]<class T>(T) {
    sum_.resize(static_cast<std::size_t>(capacity_numel) * sizeof(SumOf<T>));
  });
}

void OrderedSum::begin(std::int64_t numel) {
  numel_ = numel;
  first_ = true;
}

void OrderedSum::add(const void* source) {
  with_type(dtype_, [&]<class T>(T) {
    auto* sum = reinterpret_cast<SumOf<T>*>(sum_.data());
    const auto* in = static_cast<const T*>(source);
    if (first_)
      for (std::int64_t i = 0; i < numel_; ++i) sum[i] = static_cast<SumOf<T>>(in[i]);
    else
      for (std::int64_t i = 0; i < numel_; ++i) sum[i] += static_cast<SumOf<T>>(in[i]);
  });
  first_ = false;
}

void OrderedSum::finish(void* destination, int divisor) {
  with_type(dtype_, [&]<class T>(T) {
    const auto* sum = reinterpret_cast<const SumOf<T>*>(sum_.data());
    auto* out = static_cast<T*>(destination);
    if (divisor == 1)
      for (std::int64_t i = 0; i < numel_; ++i) out[i] = static_cast<T>(sum[i]);
    else
      for (std::int64_t i = 0; i < numel_; ++i)
        out[i] = static_cast<T>(sum[i] / static_cast<SumOf<T>>(divisor));
  });
}

}  // namespace floe::comm
