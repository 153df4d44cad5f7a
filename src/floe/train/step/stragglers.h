// Ranks that hold the others up.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace floe::train {

// What a rank did in a step without waiting for others, and how long it waited. All ranks take the
// same time for a step, because they wait for the slowest one; this tells them apart. On a GPU the
// host does not see how long the device computes or waits: there it is the time for data and for
// what the host itself does.
struct RankTimes {
  double data_s = 0;         // waiting for its batches
  double own_s = 0;          // that, and everything else but waits in collectives
  double gather_wait_s = 0;  // until parameters were there
  double reduce_wait_s = 0;  // until sums over ranks were: of gradients, and of the agreement
};

// The times of all ranks as numbers to be summed over ranks: every rank fills its own.
std::vector<double> encode(const RankTimes& times, int rank, int world_size);
std::vector<RankTimes> decode_times(std::span<const double> sums);

// Of a step: the smallest and the largest of a time, and whose the largest is.
struct TimeRange {
  double least_s = 0, most_s = 0;
  int most_rank = 0;
};
TimeRange range_of(const std::vector<RankTimes>& ranks, double RankTimes::*time);

class Stragglers {
 public:
  struct Limits {
    double factor = 1.25;   // of the median of the others
    double least_s = 0.05;  // by which it is slower, in each step
    int steps = 20;         // for so many steps on end
    double seconds = 10;    // and so long
  };

  explicit Stragglers(int world_size) : Stragglers(world_size, Limits()) {}
  Stragglers(int world_size, const Limits& limits);

  // After every step, with its length. A sentence about a rank that has been slower than the others
  // for some time, once for each; else nothing.
  std::optional<std::string> add(const std::vector<RankTimes>& ranks, double step_s,
                                 const std::function<std::string(int)>& name);

 private:
  struct Rank {
    RankTimes mean;  // of the steps since it is slow
    int slow_steps = 0;
    double slow_s = 0;
    bool told = false;
  };

  Limits limits_;
  std::vector<Rank> ranks_;
};

}  // namespace floe::train
