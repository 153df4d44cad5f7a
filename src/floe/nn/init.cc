#include "floe/nn/init.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <vector>

#include "floe/core/hash.h"
#include "floe/core/philox.h"

namespace floe::nn {
namespace {

// In (0, 1), both ends excluded: 23 bits and a half are exact in a float.
float unit(std::uint32_t word) { return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f; }

std::array<float, 4> normals(const std::array<std::uint32_t, 4>& words) {
  std::array<float, 4> out{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const float radius = std::sqrt(-2.0f * std::log(unit(words[pair])));
    const float angle = 6.2831853071795865f * unit(words[pair + 1]);
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

// Runs body(begin, end) over [0, numel) on as many threads as torch would use. at::parallel_for
// runs on one wherever it is compiled without OpenMP, as here.
template <class Body>
void split(std::int64_t numel, const Body& body) {
  constexpr std::int64_t kWorthAThread = std::int64_t{1} << 17;
  const std::int64_t threads =
      std::clamp<std::int64_t>(numel / kWorthAThread, 1, at::get_num_threads());
  const std::int64_t share = (numel + threads - 1) / threads;
  std::vector<std::jthread> others;
  for (std::int64_t begin = share; begin < numel; begin += share)
    others.emplace_back([&body, begin, end = std::min(begin + share, numel)] { body(begin, end); });
  body(0, std::min(share, numel));
}

void fill_random(const Init& init, const Philox& random, std::int64_t first, float* out,
                 std::int64_t numel) {
  const auto a = static_cast<float>(init.a), b = static_cast<float>(init.b);
  split(numel, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, 4> values{};
    std::int64_t have = -1;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t element = first + i;
      if (element / 4 != have) {
        have = element / 4;
        const auto words = random.block(static_cast<std::uint64_t>(have));
        if (init.kind == Init::Kind::normal) {
          values = normals(words);
          for (float& v : values) v = a + b * v;
        } else {
          for (std::size_t k = 0; k < 4; ++k) values[k] = a + (b - a) * unit(words[k]);
        }
      }
      out[i] = values[static_cast<std::size_t>(element % 4)];
    }
  });
}

}  // namespace

Init Init::fan_in(std::int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(fan_in, 1)));
  return uniform(-bound, bound);
}

void fill(const Init& init, std::uint64_t seed, const std::string& parameter, std::int64_t first,
          const at::Tensor& out) {
  if (init.kind == Init::Kind::constant) {
    out.fill_(init.a);
    return;
  }
  const Philox random(Hash64().add(seed).add(parameter).value());
  if (out.is_cpu() && out.scalar_type() == at::kFloat) {
    fill_random(init, random, first, out.mutable_data_ptr<float>(), out.numel());
    return;
  }
  // Through a bounded buffer, so that a large slice on a device costs little host memory.
  constexpr std::int64_t kStep = std::int64_t{1} << 22;
  at::Tensor buffer = at::empty({std::min(kStep, out.numel())}, at::kFloat);
  for (std::int64_t done = 0; done < out.numel(); done += kStep) {
    const std::int64_t numel = std::min(kStep, out.numel() - done);
    fill_random(init, random, first + done, buffer.mutable_data_ptr<float>(), numel);
    out.narrow(0, done, numel).copy_(buffer.narrow(0, 0, numel));
  }
}

}  // namespace floe::nn
