// A data set as a sequence of batches: the streams of its workers, in turn.
//
// Note [Threads of the loader]
// Each logical worker has a thread that reads its shards; the pool decodes; what depends on order
// (the draws, the batches, the state) is done in order under the source's lock by whichever
// thread brings the next result. A reader goes on only while it is less than its queue ahead of
// the batches that were given: in samples, and in bytes. So the number of threads decides how
// fast a batch comes, never what is in it. `changed`, through which these threads wake the
// loader, is the only callback.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "floe/data/loader/batch.h"
#include "floe/data/loader/task_pool.h"
#include "floe/data/sources/source.h"

namespace floe::data {

// Where a source stands after a step; never changes.
class SourceState {
 public:
  virtual ~SourceState() = default;
  virtual nlohmann::json save() const = 0;
  virtual Counts counts() const { return {}; }
};

// What a source has for the next step.
struct SourceOutput {
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

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Threads of its own begin. From now on it calls `changed` of its constructor, without holding
  // locks, when try_next() may have something new.
  virtual void start() {}
  // The next step, if it is there. Throws what went wrong once everything before that was given.
  virtual std::optional<SourceOutput> try_next() = 0;
  // The pictures of one of its batches are in their place, so that nothing of it is needed any
  // more. Once for each; any thread.
  virtual void written(const PendingBatch&) {}
  // No thread of its own, and no callback, runs afterwards. The pool must have been stopped before.
  virtual void stop() {}
  virtual std::shared_ptr<const SourceState> initial_state() const = 0;
  virtual SourceUsage usage() const { return {}; }
};

struct SampleSourceOptions {
  const DataSource* source = nullptr;
  std::vector<StreamSetup> setups;  // one per worker
  std::vector<StreamState> starts;  // as many
  BatchRule rule;
  ReaderOptions reader;
  std::shared_ptr<const SampleMaker> maker;
  std::int64_t image_slots = 0;  // of SourceBatch
  int image_size = 0;
  // What one worker may have ahead, beside the batch that is being filled.
  std::int64_t queue_samples = 0, queue_bytes = 0;
  nlohmann::json identity;  // kept in the state: what the data is, for whom it was dealt
};

class SampleSource : public BatchSource {
 public:
  SampleSource(SampleSourceOptions options, TaskPool& pool, std::function<void()> changed);
  ~SampleSource() override;

  void start() override;
  std::optional<SourceOutput> try_next() override;
  void written(const PendingBatch& batch) override;
  void stop() override;
  std::shared_ptr<const SourceState> initial_state() const override;
  SourceUsage usage() const override;

 private:
  struct Queued;
  struct Worker;
  class State;

  void read(Worker& worker);
  bool may_read(const Worker& worker) const;
  void make(Worker& worker, std::uint64_t generation, const std::shared_ptr<Queued>& queued);
  void process(Worker& worker);
  void begin_epoch(Worker& worker);
  void count_usage();

  SampleSourceOptions options_;
  TaskPool& pool_;
  std::function<void()> changed_;

  mutable std::mutex mutex_;
  std::condition_variable readers_;
  std::atomic<bool> stopped_{false};
  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t turn_ = 0;  // the worker whose batch comes next
  DamageLog damage_log_;
  std::vector<std::shared_ptr<const StreamState>> given_;  // of each worker, after its last batch
  SourceUsage usage_;
};

}  // namespace floe::data
