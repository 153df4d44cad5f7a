// A data set as a sequence of batches: the streams of its workers, in turn.
//
// Note [Threads of the loader]
// Each logical worker has a thread that reads its shards; the pool decodes; what depends on order (the
// draws, the batches, the state) is done in order under the source's lock by whichever thread
// brings the next result. A reader goes on only while it is less than its queue ahead of the batches
// that were given: in samples, and in bytes. So the number of threads decides how fast a batch
// comes, never what is in it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "floe/data/loader/loader_batch.h"
#include "floe/data/loader/task_pool.h"
#include "floe/data/stream/stream_batches.h"
#include "floe/image/transform.h"

namespace floe::data {

// Where a source stands after a step; never changes.
class SourceState {
 public:
  virtual ~SourceState() = default;
  virtual nlohmann::json save() const = 0;
  virtual Counts counts() const { return {}; }
};

// A batch whose pictures are not in their final place yet.
struct PendingBatch {
  Batch batch;
  ImageShape shape;
  // Writes one picture, [3, height, width]. Any thread.
  std::function<void(std::int64_t image, float* out)> write_image;
  // Called once when all pictures are written.
  std::function<void()> written = [] {};
};

// Samples as a batch; keeps them until their pictures are written. `transform` may be null without
// pictures.
PendingBatch pending_batch(SourceId source, std::int64_t image_slots, StreamBatch batch,
                           const image::Transform* transform);

// What a source has for the next step.
struct SourceStep {
  std::vector<PendingBatch> batches;
  bool ends_epoch = false;
  std::shared_ptr<const SourceState> after;
};

// How far readers are ahead; for tests and reports.
struct SourceUsage {
  std::int64_t samples_ahead = 0, most_samples_ahead = 0;  // read, not in a given batch or dropped
  std::int64_t bytes_ahead = 0, most_bytes_ahead = 0;
  std::int64_t shuffle_bytes = 0, most_shuffle_bytes = 0;
};

class Source {
 public:
  virtual ~Source() = default;
  // Threads of its own begin. From now on it calls `changed` of its constructor, without holding
  // locks, when try_next() may have something new.
  virtual void start() {}
  // The next step, if it is there. Throws what went wrong once everything before that was given.
  virtual std::optional<SourceStep> try_next() = 0;
  // No thread of its own, and no callback, runs afterwards. The pool must have been stopped before.
  virtual void stop() {}
  virtual std::shared_ptr<const SourceState> initial_state() const = 0;
  virtual SourceUsage usage() const { return {}; }
};

struct SampleSourceOptions {
  SourceId id = SourceId::laion;
  std::vector<StreamSetup> setups;  // one per worker
  std::vector<StreamState> starts;  // as many
  BatchRule rule;
  ReaderOptions reader;
  std::shared_ptr<const SampleMaker> maker;
  std::int64_t image_slots = 0;  // of Batch
  const image::Transform* transform = nullptr;
  // What one worker may have ahead, beside the batch that is being filled.
  std::int64_t queue_samples = 0, queue_bytes = 0;
  nlohmann::json identity;  // kept in the state: what the data is, for whom it was dealt
};

class SampleSource : public Source {
 public:
  SampleSource(SampleSourceOptions options, TaskPool& pool, std::function<void()> changed);
  ~SampleSource() override;

  void start() override;
  std::optional<SourceStep> try_next() override;
  void stop() override;
  std::shared_ptr<const SourceState> initial_state() const override;
  SourceUsage usage() const override;

 private:
  struct Slot;
  struct Worker;
  class State;

  void read(Worker& worker);
  bool may_read(const Worker& worker) const;
  void make(Worker& worker, std::uint64_t generation, const std::shared_ptr<Slot>& slot);
  void process(Worker& worker);
  void begin_epoch(Worker& worker);
  void tell(std::string_view reason, const std::string& sentence);
  PendingBatch pending(Worker& worker, StreamBatch batch);
  void count_usage();

  SampleSourceOptions options_;
  TaskPool& pool_;
  std::function<void()> changed_;
  std::string name_;

  mutable std::mutex mutex_;
  std::condition_variable readers_;
  std::atomic<bool> stopped_{false};
  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t turn_ = 0;  // the worker whose batch comes next
  std::map<std::string, std::int64_t, std::less<>> told_;
  std::vector<std::shared_ptr<const StreamState>> given_;  // of each worker, after its last batch
  SourceUsage usage_;
};

}  // namespace floe::data
