// Copies in host memory: on the device that FLOE_TEST_DEVICE names.
#include "floe/checkpoint/save/host_copy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/device.h"

namespace floe::checkpoint::host_copy_test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Values of several sizes, types and layouts: some end inside of a page-locked piece, one goes
// through three of them.
std::vector<StateTensor> some_state(double factor) {
  const auto floats = at::TensorOptions().device(test::device()).dtype(at::kFloat);
  std::vector<at::Tensor> values{at::randn({3}, floats),
                                 at::randn({7 * kMiB}, floats),
                                 at::randn({5, 7}, floats).to(at::kBFloat16),
                                 at::randn({12 * kMiB + 5}, floats),
                                 at::randn({64, 33}, floats).t(),
                                 at::randn({}, floats.dtype(at::kDouble)),
                                 at::empty({0}, floats)};
  std::vector<StateTensor> state;
  for (const at::Tensor& value : values) {
    StateTensor& tensor = state.emplace_back();
    tensor.pieces.emplace_back().values = value * factor;
  }
  return state;
}

void expect_equal(const std::vector<StateTensor>& copies, const std::vector<StateTensor>& state) {
  ASSERT_EQ(copies.size(), state.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    const at::Tensor &copy = copies[i].pieces.at(0).values, &value = state[i].pieces.at(0).values;
    EXPECT_TRUE(copy.device().is_cpu());
    EXPECT_EQ(copy.scalar_type(), value.scalar_type());
    EXPECT_EQ(copy.sizes(), value.sizes());
    EXPECT_TRUE(copy.equal(value.cpu())) << "tensor " << i;
    if (copy.numel() > 0) {  // else it has no memory
      EXPECT_EQ(!test::device().is_cpu(), copy.is_pinned()) << "tensor " << i;
    }
  }
}

TEST(HostCopy, IsWhatWasThere) {
  HostCopy copies;
  const auto state = some_state(1);
  expect_equal(copies.of(state), state);
}

TEST(HostCopy, PreparedMemoryServesEverySave) {
  HostCopy copies;
  EXPECT_EQ(copies.bytes(), 0);
  const auto state = some_state(1), later = some_state(-3);
  copies.prepare(state);
  const std::int64_t prepared = copies.bytes();  // while it is being made
  EXPECT_GT(prepared, 76 * kMiB);
  const auto first = copies.of(state);
  expect_equal(first, state);
  const void* const where = first[0].pieces[0].values.const_data_ptr();
  copies.prepare(later);  // there is enough
  const auto second = copies.of(later);
  expect_equal(second, later);
  EXPECT_EQ(second[0].pieces[0].values.const_data_ptr(), where);
  EXPECT_EQ(copies.bytes(), prepared);
}

TEST(HostCopy, GrowsWithWhatIsToBeSaved) {
  HostCopy copies;
  auto state = some_state(1);
  const std::vector<StateTensor> small(state.begin(), state.begin() + 1);
  expect_equal(copies.of(small), small);
  const auto kept = copies.of(small);
  copies.prepare(state);
  expect_equal(kept, small);  // its memory goes with the last of it
  expect_equal(copies.of(state), state);
}

TEST(HostCopy, EndsWhileMemoryIsBeingMade) {
  HostCopy copies;
  copies.prepare(some_state(1));
}

}  // namespace
}  // namespace floe::checkpoint::host_copy_test
