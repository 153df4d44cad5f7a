// What collectives deliver, against sums that this test makes itself in rank order.
#include <ATen/ATen.h>

#include <algorithm>
#include <random>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "tests/support/ranks.h"
#include "tests/support/same_bits.h"

namespace floe::comm::collectives_test {
namespace {

using test::same_bits;

constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong};

// What rank `rank` contributes: of very different magnitudes, so that another order of the sum, or
// one that rounds in between, gives other bits.
at::Tensor data_of(int rank, std::int64_t numel, at::ScalarType dtype, int salt) {
  at::Tensor data = at::empty({numel}, dtype == at::kLong ? at::kLong : at::kFloat);
  const std::uint64_t seed =
      mix64(1000 * static_cast<std::uint64_t>(salt) + static_cast<std::uint64_t>(rank) + 1);
  auto* longs = static_cast<std::int64_t*>(data.mutable_data_ptr());
  auto* floats = static_cast<float*>(data.mutable_data_ptr());
  for (std::int64_t i = 0; i < numel; ++i) {
    const std::uint64_t bits = mix64(seed + static_cast<std::uint64_t>(i));
    if (dtype == at::kLong)
      longs[i] = static_cast<std::int64_t>(bits) >> 3;
    else  // 24 random bits with a sign, times 2^-3 ... 2^4
      floats[i] = static_cast<float>(static_cast<std::int32_t>(bits >> 32) >> 8) * 0x1p-26f *
                  static_cast<float>(1 << (bits & 7));
  }
  return dtype == at::kDouble ? data.to(dtype) * 1.1 : data.to(dtype);
}

at::Tensor ordered_sum(int world, std::int64_t numel, at::ScalarType dtype, int salt,
                       Reduce reduce) {
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto wide = narrow ? at::kFloat : dtype;
  at::Tensor sum = data_of(0, numel, dtype, salt).to(wide);
  for (int rank = 1; rank < world; ++rank) sum = sum + data_of(rank, numel, dtype, salt).to(wide);
  if (reduce == Reduce::average) {
    if (dtype == at::kLong)
      sum = at::div(sum, world, "trunc");
    else
      sum = sum / at::full_like(sum, world);
  }
  return sum.to(dtype);
}

std::string words(const char* what, std::int64_t numel, at::ScalarType dtype) {
  return str(what, " of ", numel, " ", c10::toString(dtype));
}

void check_all_gather(Group& group, std::int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(data_of(rank, numel, dtype, 1));
  const at::Tensor expected = at::cat(all);
  const at::Tensor input = data_of(group.rank(), numel, dtype, 1);
  at::Tensor output = at::full({numel * group.size()}, 77, at::TensorOptions().dtype(dtype));
  group.all_gather(output, input, "gather").wait();
  EXPECT_TRUE(same_bits(output, expected)) << words("all-gather", numel, dtype);
  EXPECT_TRUE(same_bits(input, all[static_cast<std::size_t>(group.rank())]));

  output.fill_(77);
  at::Tensor own = output.narrow(0, group.rank() * numel, numel);
  own.copy_(input);
  group.all_gather(output, own, "gather in place").wait();
  EXPECT_TRUE(same_bits(output, expected)) << words("all-gather in place", numel, dtype);
}

void check_reduce_scatter(Group& group, std::int64_t numel, at::ScalarType dtype, Reduce reduce) {
  const std::int64_t whole = numel * group.size();
  const at::Tensor input = data_of(group.rank(), whole, dtype, 2), before = input.clone();
  const at::Tensor output = at::full({numel}, 77, at::TensorOptions().dtype(dtype));
  group.reduce_scatter(output, input, reduce, "scatter").wait();
  const at::Tensor expected =
      ordered_sum(group.size(), whole, dtype, 2, reduce).narrow(0, group.rank() * numel, numel);
  EXPECT_TRUE(same_bits(output, expected)) << words("reduce-scatter to", numel, dtype);
  EXPECT_TRUE(same_bits(input, before)) << "the input changed";

  // The output may be the rank's slice of the input.
  at::Tensor own = input.narrow(0, group.rank() * numel, numel);
  group.reduce_scatter(own, input, reduce, "scatter in place").wait();
  EXPECT_TRUE(same_bits(own, expected)) << words("reduce-scatter in place to", numel, dtype);
}

void check_all_reduce(Group& group, std::int64_t numel, at::ScalarType dtype, Reduce reduce) {
  const at::Tensor tensor = data_of(group.rank(), numel, dtype, 3);
  group.all_reduce(tensor, reduce, "reduce").wait();
  EXPECT_TRUE(same_bits(tensor, ordered_sum(group.size(), numel, dtype, 3, reduce)))
      << words("all-reduce", numel, dtype);
}

void check_broadcast(Group& group, std::int64_t numel, at::ScalarType dtype) {
  for (int root = 0; root < group.size(); ++root) {
    const at::Tensor tensor = data_of(group.rank(), numel, dtype, 4);
    group.broadcast(tensor, root, "broadcast").wait();
    EXPECT_TRUE(same_bits(tensor, data_of(root, numel, dtype, 4)))
        << words("broadcast", numel, dtype) << " from " << root;
  }
}

void check_values(Group& group) {
  // 8192 floats are the largest all-reduce in one trip; 131072 floats are one chunk.
  for (const auto dtype : kDtypes) {
    for (const std::int64_t numel : {0, 1, 7, 4099}) check_all_gather(group, numel, dtype);
    for (const auto reduce : {Reduce::sum, Reduce::average}) {
      for (const std::int64_t numel : {0, 1, 7, 4099})
        check_reduce_scatter(group, numel, dtype, reduce);
      for (const std::int64_t numel : {0, 1, 2, 3, 5, 4096, 8192, 8193, 16385, 40001})
        check_all_reduce(group, numel, dtype, reduce);
    }
    for (const std::int64_t numel : {1, 1001}) check_broadcast(group, numel, dtype);
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::int64_t chunk = kMiB / 2 / static_cast<std::int64_t>(c10::elementSize(dtype));
    check_all_gather(group, 3 * chunk + 5, dtype);
    for (const std::int64_t numel : {chunk - 1, chunk, chunk + 1, 4 * chunk + 3})
      check_reduce_scatter(group, numel, dtype, Reduce::average);
    check_all_reduce(group, 3 * chunk * group.size() + 1, dtype, Reduce::sum);
    check_all_reduce(group, chunk * group.size(), dtype, Reduce::average);
  }
}

TEST_RANKS(Collectives, ValuesOnTwoRanks, 2) { check_values(*World::join()->group()); }
TEST_RANKS(Collectives, ValuesOnThreeRanks, 3) { check_values(*World::join()->group()); }
TEST_RANKS(Collectives, ValuesOnFourRanks, 4) { check_values(*World::join()->group()); }

TEST_RANKS(Collectives, SeveralInFlightWaitedInAnyOrder, 3) {
  auto world = World::join();
  Group& group = *world->group();
  struct Flight {
    Work work;
    at::Tensor keep, output, expected;
  };
  // Waits come in another order on every rank.
  std::mt19937 random(static_cast<unsigned>(group.rank()));
  for (int round = 0; round < 4; ++round) {
    std::vector<Flight> flights;
    for (int i = 0; i < 6; ++i) {
      const std::int64_t numel = i % 2 ? 300'001 + i : 100 + i;
      const int salt = 100 * round + 10 * i;
      const std::string label = str("flight ", i);

      at::Tensor reduced = data_of(group.rank(), numel, at::kFloat, salt);
      Work reduce = group.all_reduce(reduced, Reduce::sum, label);
      flights.push_back(
          {reduce, {}, reduced, ordered_sum(group.size(), numel, at::kFloat, salt, Reduce::sum)});

      at::Tensor input = data_of(group.rank(), numel, at::kFloat, salt + 1);
      at::Tensor gathered = at::empty({numel * group.size()});
      std::vector<at::Tensor> all;
      for (int r = 0; r < group.size(); ++r) all.push_back(data_of(r, numel, at::kFloat, salt + 1));
      flights.push_back({group.all_gather(gathered, input, label), input, gathered, at::cat(all)});

      at::Tensor whole = data_of(group.rank(), numel * group.size(), at::kFloat, salt + 2);
      at::Tensor slice = at::empty({numel});
      Work scatter = group.reduce_scatter(slice, whole, Reduce::average, label);
      flights.push_back(
          {scatter, whole, slice,
           ordered_sum(group.size(), numel * group.size(), at::kFloat, salt + 2, Reduce::average)
               .narrow(0, group.rank() * numel, numel)});

      at::Tensor sent = data_of(group.rank(), numel, at::kFloat, salt + 3);
      const int root = i % group.size();
      flights.push_back({group.broadcast(sent, root, label),
                         {},
                         sent,
                         data_of(root, numel, at::kFloat, salt + 3)});
    }
    std::vector<std::size_t> order(flights.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      flights[i].work.wait();
      EXPECT_TRUE(same_bits(flights[i].output, flights[i].expected))
          << "round " << round << ", " << i;
    }
  }
  group.barrier("done");
}

TEST_RANKS(Collectives, TrafficCountsCallsAndBytes, 2) {
  auto world = World::join();
  Group& group = *world->group();
  const auto none = group.traffic();
  EXPECT_EQ(none.all_gathers + none.reduce_scatters + none.all_reduces + none.broadcasts, 0);
  for (int i = 0; i < 3; ++i) group.all_gather(at::empty({20}), at::ones({10}), "a").wait();
  group
      .reduce_scatter(at::empty({10}, at::kBFloat16), at::ones({20}, at::kBFloat16), Reduce::sum,
                      "b")
      .wait();
  group.all_reduce(at::ones({5}, at::kDouble), Reduce::sum, "c").wait();
  group.all_reduce(at::ones({100'000}), Reduce::average, "c").wait();
  group.broadcast(at::ones({7}, at::kLong), 1, "d").wait();
  const Traffic& traffic = group.traffic();
  EXPECT_EQ(traffic.all_gathers, 3);
  EXPECT_EQ(traffic.all_gather_bytes, 3 * 20 * 4);
  EXPECT_EQ(traffic.reduce_scatters, 1);
  EXPECT_EQ(traffic.reduce_scatter_bytes, 20 * 2);
  EXPECT_EQ(traffic.all_reduces, 2);
  EXPECT_EQ(traffic.all_reduce_bytes, 5 * 8 + 400'000);
  EXPECT_EQ(traffic.broadcasts, 1);
  EXPECT_EQ(traffic.broadcast_bytes, 7 * 8);
  group.barrier("a barrier is no traffic");
  EXPECT_EQ(group.traffic().all_reduces, 2);
}

// Note [Direct collectives]: nothing for an all-gather, four chunks per peer for a sum.
TEST_RANKS(Collectives, TemporaryMemoryIsTheWindow, 3) {
  auto& memory = diagnostics::MemoryCounter::install();
  auto world = World::join();
  Group& group = *world->group();
  const std::int64_t numel = 5 * kMiB / 4 + 3;  // 10 chunks and a bit, in fp32
  const at::Tensor whole = at::ones({3 * numel}), slice = at::ones({numel});
  const std::int64_t window = 4 * 2 * kMiB / 2;  // chunks of half a MiB, of two other ranks
  const auto extra = [&](auto&& collective) {
    group.barrier("begin");
    const auto before = memory.current_bytes();
    memory.reset_peak();
    collective();
    EXPECT_EQ(memory.current_bytes(), before) << "something stays";
    return memory.peak_bytes() - before;
  };
  EXPECT_EQ(extra([&] { group.all_gather(whole, slice, "gather").wait(); }), 0);
  const auto scattered =
      extra([&] { group.reduce_scatter(slice, whole, Reduce::sum, "scatter").wait(); });
  EXPECT_GT(scattered, 0);
  EXPECT_LE(scattered, window);
  EXPECT_LE(extra([&] { group.all_reduce(whole, Reduce::average, "reduce").wait(); }), window);
  EXPECT_LE(extra([&] { group.all_reduce(whole.narrow(0, 0, 8192), Reduce::sum, "small").wait(); }),
            3 * 32 * kKiB);
  EXPECT_EQ(extra([&] { group.broadcast(whole, 0, "broadcast").wait(); }), 0);
  EXPECT_EQ(slice[numel - 1].item<float>(), 3);
}

// Nobody gets through a barrier early.
TEST_RANKS(Collectives, BarriersHold, 3) {
  auto world = World::join();
  world->group()->barrier("begin");
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    world->publish("came", "yes");
  }
  world->group()->barrier("meet");
  EXPECT_EQ(world->lookup("came", std::chrono::milliseconds(500)), "yes");
  world->group()->barrier("all have looked");
}

TEST_RANKS(Collectives, WrongTensorsAreRefusedBeforeAnythingIsSent, 2) {
  auto world = World::join();
  Group& group = *world->group();
  const auto says = [&](auto&& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << part;
    } catch (const CommError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find(part), std::string::npos) << text;
      EXPECT_NE(text.find("'the label' on rank " + std::to_string(group.rank()) + " of 2"),
                std::string::npos)
          << text;
    }
  };
  const std::string label = "the label";
  says([&] { group.all_gather(at::empty({5}), at::empty({2}), label); }, "2 times the input's 2");
  says([&] { group.all_gather(at::empty({4}), at::empty({2}, at::kHalf), label); }, "dtype");
  says([&] { group.all_gather(at::empty({2, 2}).t(), at::empty({2}), label); }, "contiguous");
  says([&] { group.reduce_scatter(at::empty({2}), at::empty({5}), Reduce::sum, label); },
       "2 times the output's 2");
  says([&] { group.all_reduce(at::empty({4, 4}).t(), Reduce::sum, label); }, "contiguous");
  says([&] { group.broadcast(at::empty({4}), 2, label); }, "root below 2");
  says([&] { group.broadcast(at::empty({4}), -1, label); }, "root below 2");
  says([&] { group.all_reduce(at::ones({4}, at::kBool), Reduce::sum, label).wait(); },
       "cannot be summed");
  EXPECT_EQ(group.traffic().all_gathers + group.traffic().reduce_scatters, 0);
  // The group still works.
  check_all_reduce(group, 100, at::kFloat, Reduce::sum);
}

}  // namespace
}  // namespace floe::comm::collectives_test
