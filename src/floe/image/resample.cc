#include "floe/image/resample.h"

#include <algorithm>
#include <cmath>

#include "floe/image/resample_kernels.h"

namespace floe::image {

bool is_supported(Isa isa) {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2");
  if (isa == Isa::vnni)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
#endif
  return isa == Isa::plain;
}

Isa best_isa() {
  for (const Isa isa : {Isa::vnni, Isa::avx2})
    if (is_supported(isa)) return isa;
  return Isa::plain;
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::vnni: return "vnni";
    case Isa::avx2: return "avx2";
    case Isa::plain: return "plain";
  }
  return "";
}

namespace {

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

constexpr std::int32_t kHalf = 1 << (Weights::kFractionBits - 1);

std::uint8_t clipped(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> Weights::kFractionBits, 0, 255));
}

int some_rows(const Weights& weights, const Rows& in, int y, int num_rows, std::uint8_t* out,
              Isa isa) {
  switch (isa) {
    case Isa::vnni: return rows_vnni(weights, in, y, num_rows, out);
    case Isa::avx2: return rows_avx2(weights, in, y, num_rows, out);
    case Isa::plain: return 0;
  }
  return 0;
}

std::size_t some_bytes(const Weights& weights, int i, const std::uint8_t* top, std::size_t stride,
                       std::uint8_t* out, Isa isa) {
  switch (isa) {
    case Isa::vnni: return bytes_vnni(weights, i, top, stride, stride, out);
    case Isa::avx2: return bytes_avx2(weights, i, top, stride, stride, out);
    case Isa::plain: return 0;
  }
  return 0;
}

}  // namespace

void Weights::compute(std::int64_t in_size, std::int64_t out_size, std::int64_t first, int count) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double filter_scale = std::max(scale, 1.0);
  const double support = 2.0 * filter_scale;
  const double inverse = 1.0 / filter_scale;
  const auto most_weights = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  room_ = (most_weights + kGroup - 1) / kGroup * kGroup;
  const std::size_t total = static_cast<std::size_t>(count) * room_;
  windows_.resize(static_cast<std::size_t>(count));
  exact_.resize(room_);
  whole_.assign(total, 0);
  high_.assign(total, 0);
  low_.assign(total, 0);
  begin_ = static_cast<int>(in_size);
  end_ = 0;
  for (int i = 0; i < count; ++i) {
    const double centre = (static_cast<double>(first + i) + 0.5) * scale;
    // NOLINTBEGIN(bugprone-incorrect-roundings): as Pillow rounds
    const auto begin = std::max<std::int64_t>(static_cast<std::int64_t>(centre - support + 0.5), 0);
    const auto end = std::min(static_cast<std::int64_t>(centre + support + 0.5), in_size);
    // NOLINTEND(bugprone-incorrect-roundings)
    const Window window{static_cast<int>(begin), static_cast<int>(end - begin)};
    double sum = 0;
    for (int t = 0; t < window.count; ++t) {
      const double weight = bicubic((t + window.first - centre + 0.5) * inverse);
      exact_[static_cast<std::size_t>(t)] = weight;
      sum += weight;
    }
    for (int t = 0; t < window.count; ++t) {
      double weight = exact_[static_cast<std::size_t>(t)];
      if (sum != 0.0) weight /= sum;
      const auto fixed =
          static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kFractionBits));
      const std::size_t at = offset(i) + static_cast<std::size_t>(t);
      whole_[at] = fixed;
      high_[at] = static_cast<std::int16_t>(fixed >> kLowBits);
      low_[at] = static_cast<std::int16_t>(fixed & ((1 << kLowBits) - 1));
    }
    windows_[static_cast<std::size_t>(i)] = window;
    begin_ = std::min(begin_, window.first);
    end_ = std::max(end_, window.first + window.count);
  }
}

void pixel_plain(const Weights& weights, int i, const std::uint8_t* row, std::uint8_t* out) {
  const auto [first, count] = weights.window(i);
  const std::int32_t* weight = weights.whole(i);
  const std::uint8_t* pixel = row + 3 * static_cast<std::ptrdiff_t>(first);
  std::int32_t sum[3]{kHalf, kHalf, kHalf};
  for (int t = 0; t < count; ++t, pixel += 3)
    for (int c = 0; c < 3; ++c) sum[c] += pixel[c] * weight[t];
  for (int c = 0; c < 3; ++c) out[c] = clipped(sum[c]);
}

void bytes_plain(const Weights& weights, int i, const std::uint8_t* top, std::size_t stride,
                 std::size_t begin, std::size_t end, std::uint8_t* out) {
  const int count = weights.window(i).count;
  const std::int32_t* weight = weights.whole(i);
  for (std::size_t x = begin; x < end; ++x) {
    std::int32_t sum = kHalf;
    for (int t = 0; t < count; ++t)
      sum += top[stride * static_cast<std::size_t>(t) + x] * weight[t];
    out[x] = clipped(sum);
  }
}

void resample_across(const Weights& weights, const Rows& in, int num_rows, std::uint8_t* out,
                     Isa isa) {
  const std::size_t out_stride = 3 * static_cast<std::size_t>(weights.num_results());
  for (int y = 0; y < num_rows;) {
    const int done = some_rows(weights, in, y, num_rows, out, isa);
    y += done;
    if (done > 0) continue;
    const std::uint8_t* row = in.data + in.stride * static_cast<std::size_t>(y);
    for (int i = 0; i < weights.num_results(); ++i)
      pixel_plain(weights, i, row, out + out_stride * static_cast<std::size_t>(y) + 3 * i);
    ++y;
  }
}

void resample_down(const Weights& weights, const Rows& in, int first_row, std::uint8_t* out,
                   Isa isa) {
  for (int i = 0; i < weights.num_results(); ++i, out += in.stride) {
    const std::uint8_t* top =
        in.data + in.stride * static_cast<std::size_t>(weights.window(i).first - first_row);
    const std::size_t done = some_bytes(weights, i, top, in.stride, out, isa);
    bytes_plain(weights, i, top, in.stride, done, in.stride, out);
  }
}

}  // namespace floe::image
