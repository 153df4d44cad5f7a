#include "floe/observe/diagnostics/memory_counter.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace floe::diagnostics::memory_counter_test {
namespace {

at::Tensor bytes(std::int64_t n) { return at::empty({n}, at::kByte); }

// Made before any test installs the counter.
at::Tensor& early() {
  static at::Tensor tensor = at::ones({1000});
  return tensor;
}
const bool kMadeEarly = early().defined();

TEST(MemoryCounter, CountsWhatWasAskedFor) {
  auto& memory = MemoryCounter::install();
  const auto before = memory.current_bytes();
  const auto blocks = memory.num_allocations();
  memory.reset_peak();
  {
    const at::Tensor a = bytes(1), b = bytes(1000), c = at::empty({3, 5});
    EXPECT_EQ(memory.current_bytes() - before, 1 + 1000 + 60);
    EXPECT_EQ(memory.num_allocations() - blocks, 3);
    const at::Tensor view = b.narrow(0, 1, 2), empty = bytes(0);
    EXPECT_EQ(memory.current_bytes() - before, 1061);
    EXPECT_EQ(memory.num_allocations() - blocks, 3);
  }
  EXPECT_EQ(memory.current_bytes(), before);
  EXPECT_EQ(memory.peak_bytes() - before, 1061);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes(), before);
}

TEST(MemoryCounter, ThereIsOne) { EXPECT_EQ(&MemoryCounter::install(), &MemoryCounter::install()); }

TEST(MemoryCounter, DataIsAligned) {
  MemoryCounter::install();
  for (const std::int64_t n : {1, 63, 64, 65, 4096, 5'000'000})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes(n).data_ptr()) % 64, 0U) << n;
}

TEST(MemoryCounter, GrowingATensorCounts) {
  auto& memory = MemoryCounter::install();
  const auto before = memory.current_bytes();
  at::Tensor a = bytes(100);
  a.resize_({300});
  EXPECT_EQ(memory.current_bytes() - before, 300);
}

TEST(MemoryCounter, EarlierBlocksAreNotItsOwn) {
  auto& memory = MemoryCounter::install();
  const auto before = memory.current_bytes();
  early() = at::Tensor();
  EXPECT_EQ(memory.current_bytes(), before);
}

TEST(MemoryCounter, ThreadsMayFreeWhatOthersMade) {
  auto& memory = MemoryCounter::install();
  const auto before = memory.current_bytes();
  const auto blocks = memory.num_allocations();
  memory.reset_peak();
  constexpr std::int64_t kThreads = 4, kEach = 200;
  std::vector<std::vector<at::Tensor>> made(kThreads);
  const auto everywhere = [&](auto&& body) {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
    for (auto& thread : threads) thread.join();
  };
  everywhere([&](std::size_t t) {
    for (std::int64_t i = 1; i <= kEach; ++i) made[t].push_back(bytes(i));
  });
  const std::int64_t all = kThreads * kEach * (kEach + 1) / 2;
  EXPECT_EQ(memory.current_bytes() - before, all);
  EXPECT_EQ(memory.peak_bytes() - before, all);
  EXPECT_EQ(memory.num_allocations() - blocks, kThreads * kEach);
  everywhere([&](std::size_t t) { made[(t + 1) % kThreads].clear(); });
  EXPECT_EQ(memory.current_bytes(), before);
}

// oneDNN takes its scratch memory through the raw interface.
TEST(MemoryCounter, ConvolutionsAndProductsWork) {
  auto& memory = MemoryCounter::install();
  const auto before = memory.current_bytes();
  {
    const at::Tensor image = at::ones({2, 16, 32, 32}), kernel = at::ones({32, 16, 3, 3});
    const at::Tensor out = at::conv2d(image, kernel);
    EXPECT_EQ(out[1][31][29][29].item<float>(), 16 * 9);
    const at::Tensor product = at::linear(at::ones({64, 128}), at::ones({32, 128}), at::ones({32}));
    EXPECT_EQ(product[63][31].item<float>(), 129);
    const at::Tensor half =
        at::linear(at::ones({64, 128}, at::kBFloat16), at::ones({32, 128}, at::kBFloat16));
    EXPECT_EQ(half[0][0].item<float>(), 128);
  }
  EXPECT_GE(memory.current_bytes(), before);  // oneDNN may keep what it will need again
}

}  // namespace
}  // namespace floe::diagnostics::memory_counter_test
