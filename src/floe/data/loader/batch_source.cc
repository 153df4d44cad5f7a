#include "floe/data/loader/loader_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::data {
namespace {

// Of each reason so many are told in full; then they are only counted.
constexpr std::int64_t kMostTold = 3;

}  // namespace

// Something that a reader gave, until its turn comes.
struct SampleSource::Slot {
  Given given;
  std::int64_t bytes = 0;
  std::optional<Outcome> outcome;
  std::exception_ptr failure;
  bool is_done = false;
};

struct SampleSource::Worker {
  Worker(StreamBatches b, std::int64_t i) : batches(std::move(b)), index(i) {}

  StreamBatches batches;
  std::int64_t index;
  std::thread thread;
  std::deque<std::shared_ptr<Slot>> slots;
  std::uint64_t generation = 0;  // of the reader; samples of an older one do not count
  std::int64_t slot_bytes = 0;   // in slots: files before, crops after decoding
  std::int64_t num_writing = 0;  // samples of batches whose pictures are being written
  std::int64_t bytes_writing = 0;
  std::int64_t shuffle_bytes = 0;
  std::exception_ptr failure;

  std::int64_t num_ahead() const {
    return static_cast<std::int64_t>(slots.size()) + batches.num_held() + num_writing;
  }
  std::int64_t bytes_ahead() const { return slot_bytes + batches.bytes_held() + bytes_writing; }
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
      name_(name_of(options_.id)) {
  options_.reader.stop = &stopped_;
  const auto tell = [this](std::string_view reason, const std::string& sentence) {
    this->tell(reason, sentence);
  };
  for (std::size_t i = 0; i < options_.starts.size(); ++i) {
    given_.push_back(std::make_shared<const StreamState>(options_.starts[i]));
    workers_.push_back(std::make_unique<Worker>(
        StreamBatches(options_.setups[i], options_.starts[i], options_.rule, name_, tell),
        static_cast<std::int64_t>(i)));
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

void SampleSource::tell(std::string_view reason, const std::string& sentence) {
  const auto found = told_.try_emplace(std::string(reason), 0).first;
  if (++found->second <= kMostTold)
    log::warn("data.", name_, ": ", reason, ": ", sentence,
              found->second == kMostTold ? "; more of these are only counted" : "");
  else
    log::debug("data.", name_, ": ", reason, ": ", sentence);
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
  if (worker.slots.empty() && !worker.batches.has_batch()) return true;
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
      auto slot = std::make_shared<Slot>();
      try {
        if (!reader)
          reader = std::make_unique<StreamReader>(std::move(position), carried, options_.reader);
        slot->given = reader->next();
      } catch (...) {
        slot->failure = std::current_exception();
      }
      const bool has_sample = !slot->failure && slot->given.kind == Given::Kind::sample;
      slot->bytes = has_sample ? slot->given.ref.bytes : 0;
      slot->is_done = !has_sample;
      lock.lock();
      if (stopped_ || generation != worker.generation) break;
      worker.shuffle_bytes = reader ? reader->buffered_bytes() : 0;
      worker.slot_bytes += slot->bytes;
      worker.slots.push_back(slot);
      count_usage();
      if (has_sample)
        pool_.submit([this, &worker, generation, slot] { make(worker, generation, slot); });
      else
        process(worker);
      const bool failed = slot->failure != nullptr;
      lock.unlock();
      if (!has_sample) changed_();
      lock.lock();
      if (failed) return;
    }
  }
}

// ------------------------------------------------------------------------------------------- pool

void SampleSource::make(Worker& worker, std::uint64_t generation,
                        const std::shared_ptr<Slot>& slot) {
  // The slot belongs to this task until it is done.
  RawSample raw = std::move(slot->given.raw);
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
  if (const auto* sample = std::get_if<Sample>(&outcome))
    bytes = static_cast<std::int64_t>(sample->crops.size() + 8 * sample->ids.size());
  {
    const std::lock_guard lock(mutex_);
    if (generation != worker.generation) return;
    worker.slot_bytes += bytes - slot->bytes;
    slot->bytes = bytes;
    slot->outcome = std::move(outcome);
    slot->failure = failure;
    slot->is_done = true;
    process(worker);
  }
  readers_.notify_all();
  changed_();
}

// With the lock: takes the slots that are done, as long as none before them is missing.
void SampleSource::process(Worker& worker) {
  while (!worker.failure && !worker.slots.empty() && worker.slots.front()->is_done) {
    const std::shared_ptr<Slot> slot = std::move(worker.slots.front());
    worker.slots.pop_front();
    worker.slot_bytes -= slot->bytes;
    try {
      if (slot->failure) std::rethrow_exception(slot->failure);
      Given& given = slot->given;
      if (given.kind == Given::Kind::lost)
        slot->outcome = Dropped{given.raw.shard, "?", std::string(kLostAtResume),
                                "it was in the shuffle buffer and is not in its shard any more"};
      worker.batches.add(given, slot->outcome ? std::move(*slot->outcome) : Outcome{});
    } catch (...) {
      worker.failure = std::current_exception();
    }
    if (worker.batches.take_epoch_end()) begin_epoch(worker);
  }
  count_usage();
}

// What was read ahead belongs to an epoch that is over; the worker's thread begins the next one.
void SampleSource::begin_epoch(Worker& worker) {
  worker.slots.clear();
  worker.slot_bytes = 0;
  ++worker.generation;
}

// --------------------------------------------------------------------------------------- consumer

PendingBatch pending_batch(SourceId source, std::int64_t image_slots, StreamBatch batch,
                           const image::Transform* transform) {
  PendingBatch pending;
  pending.batch.source = source;
  pending.batch.image_slots = image_slots;
  struct Picture {
    const std::uint8_t* crop;
    bool flip;
  };
  std::vector<Picture> pictures;
  auto held = std::make_shared<StreamBatch>(std::move(batch));
  for (std::size_t i = 0; i < held->samples.size(); ++i) {
    const Sample& sample = held->samples[i];
    for (std::size_t k = 0; k < sample.num_images(); ++k)
      pictures.push_back({sample.crop(k).data(), held->flips[i] != 0});
    pending.batch.add_sequence(sample.ids, sample.labels,
                               static_cast<std::int64_t>(sample.num_images()), sample.key);
  }
  if (transform)
    pending.shape = {static_cast<std::int64_t>(pictures.size()), transform->size(),
                     transform->size()};
  pending.write_image = [transform, held, pictures = std::move(pictures)](std::int64_t i,
                                                                          float* out) {
    const Picture& picture = pictures[static_cast<std::size_t>(i)];
    transform->normalise(picture.crop, out, picture.flip);
  };
  return pending;
}

PendingBatch SampleSource::pending(Worker& worker, StreamBatch batch) {
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  const std::int64_t bytes = batch.bytes;
  PendingBatch pending =
      pending_batch(options_.id, options_.image_slots, std::move(batch), options_.transform);
  worker.num_writing += count;
  worker.bytes_writing += bytes;
  pending.written = [this, &worker, count, bytes] {
    {
      const std::lock_guard lock(mutex_);
      worker.num_writing -= count;
      worker.bytes_writing -= bytes;
      count_usage();
    }
    readers_.notify_all();
  };
  return pending;
}

std::optional<SourceStep> SampleSource::try_next() {
  std::optional<SourceStep> step;
  {
    const std::lock_guard lock(mutex_);
    Worker& worker = *workers_[turn_];
    if (!worker.batches.has_batch()) {
      if (worker.failure) std::rethrow_exception(worker.failure);
      return std::nullopt;
    }
    StreamBatch batch = worker.batches.take();
    given_[turn_] = batch.after;
    turn_ = (turn_ + 1) % workers_.size();
    step.emplace();
    step->ends_epoch = turn_ == 0 && batch.after->batches_of_epoch == 0;
    step->after = std::make_shared<State>(options_.identity, given_);
    step->batches.push_back(pending(worker, std::move(batch)));
  }
  readers_.notify_all();
  return step;
}

}  // namespace floe::data
