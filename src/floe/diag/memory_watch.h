// Follows the memory of a rank's device through the steps of training: current and peak at the points
// of a batch, and whose memory it is.
//
//   MemoryWatch watch(engine, {&optimizer});
//   engine.add_observer(&watch);
//   watch.mark(MemoryPoint::batch_start); ... watch.mark(MemoryPoint::batch_end);
//   for (const PointMemory& at : watch.points()) ...
//
// Note [Peaks between boundaries]
// An allocator knows its peak, not whose memory it was. So the peak is read and reset at every boundary
// of a unit, too, together with the peaks of the engine's pools: what is left unexplained then is at
// most what one unit does inside itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "floe/diag/logits_watch.h"
#include "floe/diag/memory_peak.h"
#include "floe/diag/memory_points.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::diag {

struct PointMemory {
  MemoryPoint point = MemoryPoint::batch_start;
  std::int64_t current_bytes = 0;
  MemoryPeak peak;  // since the point before
};

class MemoryWatch final : public shard::Observer {
 public:
  // The optimizers of all sets. Everything must outlive it. Resets the peaks of the device and of the
  // engine's pools as it goes.
  MemoryWatch(shard::Engine& engine, std::vector<optim::Optimizer*> optimizers);

  void on(const shard::Event& event) override;
  // batch_start begins a new batch.
  void mark(MemoryPoint point);

  // Of the batch under way or the last one, in the order they were first reached. A point that is
  // reached several times (accumulation, passes over several sources) has its largest values.
  const std::vector<PointMemory>& points() const { return points_; }
  // The largest of them.
  const PointMemory& largest() const;
  // "the peak of memory is 812 MiB, in the backward of head; 61% of it are logits …": of that one.
  std::string advice() const;

 private:
  // Reads everything, adds it to the interval under way and begins anew.
  void sample();
  std::string where() const;
  PeakContext context() const;

  shard::Engine& engine_;
  std::vector<optim::Optimizer*> optimizers_;
  c10::Device device_;
  bool slices_here_;  // on the device, not in host memory
  LogitsWatch logits_;

  struct Place {
    std::string unit;
    bool backward = false;
  };
  std::vector<Place> inside_;  // units under way, innermost last
  shard::Phase phase_ = shard::Phase::idle;
  std::int64_t between_steps_ = 0, parameters_ = 0, optimizer_bytes_ = 0;  // at batch_start
  std::int64_t reducing_bytes_ = 0;           // given to a reduction since the last sample, at most
  std::int64_t gradient_slices_ = 0;          // at the last sample
  std::int64_t current_ = 0;                  // on the device, at the last sample
  std::int64_t rest_ = 0;                     // of that, beyond the engine's own
  MemoryPeak peak_;                           // of the interval under way
  std::map<std::string, std::int64_t> kept_;  // by unit, in forward: for backward
  std::vector<PointMemory> points_;
};

}  // namespace floe::diag
