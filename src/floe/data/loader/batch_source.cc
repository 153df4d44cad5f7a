#include "floe/data/loader/batch_source.h"

#include <algorithm>

namespace floe::data {

// What a reader has read, until its turn comes.
struct SampleSource::Queued {
  ReadResult read;
  std::int64_t bytes = 0;
  std::optional<Outcome> outcome;
  std::exception_ptr failure;
  bool is_done = false;
};

struct SampleSource::Worker {
  explicit Worker(StreamBatches b) : batches(std::move(b)) {}

  StreamBatches batches;
  std::thread thread;
  std::deque<std::shared_ptr<Queued>> queue;
  std::uint64_t generation = 0;  // of the reader; samples of an older one do not count
  std::int64_t queue_bytes = 0;  // files before, crops after decoding
  std::int64_t num_writing = 0;  // samples of batches whose pictures are being written
  std::int64_t bytes_writing = 0;
  std::int64_t shuffle_bytes = 0;
  std::exception_ptr failure;

  std::int64_t num_ahead() const {
    return static_cast<std::int64_t>(queue.size()) + batches.num_held() + num_writing;
  }
  std::int64_t bytes_ahead() const { return queue_bytes + batches.bytes_held() + bytes_writing; }
};

class SampleSource::State : public SourceState {
 public:
  State(nlohmann::json identity, std::vector<std::shared_ptr<const StreamState>> streams)
      : identity_(std::move(identity)), streams_(std::move(streams)) {}

  nlohmann::json save() const override {
    nlohmann::json saved = identity_;
    for (const auto& stream : streams_) saved["streams"].push_back(stream->save());
    return saved;
  }
  Counts counts() const override {
    Counts sum;
    for (const auto& stream : streams_) sum += stream->counts;
    return sum;
  }

 private:
  nlohmann::json identity_;
  std::vector<std::shared_ptr<const StreamState>> streams_;
};

SampleSource::SampleSource(SampleSourceOptions options, TaskPool& pool,
                           std::function<void()> changed)
    : options_(std::move(options)),
      pool_(pool),
      changed_(std::move(changed)),
      damage_log_(options_.source->id()) {
  options_.reader.stop = &stopped_;
  for (std::size_t i = 0; i < options_.starts.size(); ++i) {
    given_.push_back(std::make_shared<const StreamState>(options_.starts[i]));
    workers_.push_back(
        std::make_unique<Worker>(StreamBatches(options_.setups[i], options_.starts[i],
                                               options_.rule, options_.source->id(), damage_log_)));
  }
  // Workers take turns from the first on; it is the turn of the one who has given less.
  const auto progress = [](const StreamState& state) {
    return std::pair(state.position.shards().epoch(), state.batches_of_epoch);
  };
  for (std::size_t i = 1; i < given_.size(); ++i)
    if (progress(*given_[i]) < progress(*given_[i - 1])) turn_ = i;
  options_.starts.clear();
}

SampleSource::~SampleSource() { stop(); }

void SampleSource::start() {
  for (auto& worker : workers_)
    worker->thread = std::thread([this, &worker = *worker] { read(worker); });
}

void SampleSource::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  readers_.notify_all();
  for (auto& worker : workers_)
    if (worker->thread.joinable()) worker->thread.join();
}

std::shared_ptr<const SourceState> SampleSource::initial_state() const {
  const std::lock_guard lock(mutex_);
  return std::make_shared<State>(options_.identity, given_);
}

SourceUsage SampleSource::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void SampleSource::count_usage() {
  usage_.samples_ahead = usage_.bytes_ahead = usage_.shuffle_bytes = 0;
  for (const auto& worker : workers_) {
    usage_.samples_ahead += worker->num_ahead();
    usage_.bytes_ahead += worker->bytes_ahead();
    usage_.shuffle_bytes += worker->shuffle_bytes;
  }
  usage_.most_samples_ahead = std::max(usage_.most_samples_ahead, usage_.samples_ahead);
  usage_.most_bytes_ahead = std::max(usage_.most_bytes_ahead, usage_.bytes_ahead);
  usage_.most_shuffle_bytes = std::max(usage_.most_shuffle_bytes, usage_.shuffle_bytes);
}

// ---------------------------------------------------------------------------------------- readers

bool SampleSource::may_read(const Worker& worker) const {
  if (worker.failure) return false;
  // However large its samples are, a worker may always complete one batch.
  if (worker.queue.empty() && !worker.batches.has_batch()) return true;
  const std::int64_t num_queued = worker.num_ahead() - worker.batches.num_open();
  const std::int64_t bytes_queued = worker.bytes_ahead() - worker.batches.bytes_open();
  return num_queued < options_.queue_samples && bytes_queued < options_.queue_bytes;
}

// The thread of a worker.
void SampleSource::read(Worker& worker) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const std::uint64_t generation = worker.generation;
    const StreamState& at = worker.batches.state();
    std::optional<SampleRef> carried;
    if (at.carried) carried = at.carried->sample;
    StreamPosition position = at.position;
    std::unique_ptr<StreamReader> reader;
    while (generation == worker.generation) {
      readers_.wait(
          lock, [&] { return stopped_ || generation != worker.generation || may_read(worker); });
      if (stopped_) return;
      if (generation != worker.generation) break;
      lock.unlock();
      auto queued = std::make_shared<Queued>();
      try {
        if (!reader)  // NOLINTNEXTLINE(bugprone-use-after-move): once for each position
          reader = std::make_unique<StreamReader>(std::move(position), carried, options_.reader);
        queued->read = reader->next();
      } catch (...) {
        queued->failure = std::current_exception();
      }
      const bool has_sample = !queued->failure && queued->read.kind == ReadResult::Kind::sample;
      queued->bytes = has_sample ? queued->read.ref.bytes : 0;
      queued->is_done = !has_sample;
      lock.lock();
      if (stopped_ || generation != worker.generation) break;
      worker.shuffle_bytes = reader ? reader->buffered_bytes() : 0;
      worker.queue_bytes += queued->bytes;
      worker.queue.push_back(queued);
      count_usage();
      if (has_sample)
        pool_.submit([this, &worker, generation, queued] { make(worker, generation, queued); });
      else
        process(worker);
      const bool failed = queued->failure != nullptr;
      lock.unlock();
      if (!has_sample) changed_();
      lock.lock();
      if (failed) return;
    }
  }
}

// ------------------------------------------------------------------------------------------- pool

void SampleSource::make(Worker& worker, std::uint64_t generation,
                        const std::shared_ptr<Queued>& queued) {
  // It belongs to this task until it is done.
  RawSample raw = std::move(queued->read.raw);
  {
    const std::lock_guard lock(mutex_);
    if (generation != worker.generation) return;
  }
  Outcome outcome;
  std::exception_ptr failure;
  try {
    outcome = options_.maker->make(raw);
  } catch (...) {
    failure = std::current_exception();
  }
  std::int64_t bytes = 0;
  if (const auto* sample = std::get_if<Sample>(&outcome)) bytes = bytes_of(*sample);
  {
    const std::lock_guard lock(mutex_);
    if (generation != worker.generation) return;
    worker.queue_bytes += bytes - queued->bytes;
    queued->bytes = bytes;
    queued->outcome = std::move(outcome);
    queued->failure = failure;
    queued->is_done = true;
    process(worker);
  }
  readers_.notify_all();
  changed_();
}

// With the lock: takes the results that are done, as long as none before them is missing.
void SampleSource::process(Worker& worker) {
  while (!worker.failure && !worker.queue.empty() && worker.queue.front()->is_done) {
    const std::shared_ptr<Queued> queued = std::move(worker.queue.front());
    worker.queue.pop_front();
    worker.queue_bytes -= queued->bytes;
    try {
      if (queued->failure) std::rethrow_exception(queued->failure);
      const ReadResult& read = queued->read;
      if (read.kind == ReadResult::Kind::lost)
        queued->outcome = Dropped{read.raw.shard, "?", std::string(kLostAtResume),
                                  "it was in the shuffle buffer and is not in its shard any more"};
      worker.batches.add(read, queued->outcome ? std::move(*queued->outcome) : Outcome{});
    } catch (...) {
      worker.failure = std::current_exception();
    }
    if (worker.batches.take_epoch_end()) begin_epoch(worker);
  }
  count_usage();
}

// What was read ahead belongs to an epoch that is over; the worker's thread begins the next one.
void SampleSource::begin_epoch(Worker& worker) {
  worker.queue.clear();
  worker.queue_bytes = 0;
  ++worker.generation;
}

// --------------------------------------------------------------------------------------- consumer

std::optional<SourceOutput> SampleSource::try_next() {
  std::optional<SourceOutput> output;
  {
    const std::lock_guard lock(mutex_);
    Worker& worker = *workers_[turn_];
    if (!worker.batches.has_batch()) {
      if (worker.failure) std::rethrow_exception(worker.failure);
      return std::nullopt;
    }
    SampleBatch samples = worker.batches.take();
    const auto after = given_[turn_] = samples.after;
    PendingBatch batch = pending_batch(options_.source->number(), options_.image_slots,
                                       std::move(samples), options_.image_size);
    batch.worker = turn_;
    worker.num_writing += batch.num_samples;
    worker.bytes_writing += batch.num_bytes;
    turn_ = (turn_ + 1) % workers_.size();
    output.emplace();
    output->ends_epoch = turn_ == 0 && after->batches_of_epoch == 0;
    output->after = std::make_shared<State>(options_.identity, given_);
    output->batches.push_back(std::move(batch));
  }
  readers_.notify_all();
  return output;
}

void SampleSource::written(const PendingBatch& batch) {
  {
    const std::lock_guard lock(mutex_);
    Worker& worker = *workers_[batch.worker];
    worker.num_writing -= batch.num_samples;
    worker.bytes_writing -= batch.num_bytes;
    count_usage();
  }
  readers_.notify_all();
}

}  // namespace floe::data
