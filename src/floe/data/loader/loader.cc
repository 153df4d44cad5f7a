#include "floe/data/loader/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/data/loader/loader_setup.h"

namespace floe::data {
namespace {

// Batches that are made ahead of the one that trains.
constexpr std::size_t kBatchesAhead = 2;
// Pictures that one task writes: enough that tasks cost nothing, few enough to share them out.
constexpr std::int64_t kImagesOfTask = 8;
constexpr std::chrono::milliseconds kLook{200};  // how often a wait is checked

}  // namespace

// A batch whose pictures are being written.
struct Loader::Unfinished {
  Batch batch;
  std::vector<SourceOutput> outputs;  // of each source
  std::atomic<std::int64_t> tasks_left{0};
  std::exception_ptr failure;  // while writing
  bool is_ready = false;       // under the loader's lock
};

nlohmann::json LoaderState::save() const {
  nlohmann::json saved{{"format", 1},     {"rank", rank_},   {"world", world_},
                       {"epoch", epoch_}, {"index", index_}, {"sources", nlohmann::json::array()}};
  for (const auto& source : sources_) saved["sources"].push_back(source->save());
  return saved;
}

OtherData::OtherData(const std::string& key, const std::string& before, const std::string& now)
    : ConfigError(
          str(key, " was ", before, " when the checkpoint was made and is ", now,
              " now; set it back, or set run.resume_data=restart to begin the data anew with "
              "weights, optimizer and step kept")) {}

std::string report_of(const std::vector<std::pair<std::string, Counts>>& counts) {
  std::vector<std::string> lines;
  for (const auto& [name, each] : counts)
    if (each.samples || each.shards) lines.push_back(str(name, ": ", each.text()));
  return join(lines, "\n");
}

Loader::Loader(const DataConfig& config, LoaderContext context)
    : Loader(config, std::move(context), SavedRanks()) {}

Loader::Loader(const DataConfig& config, LoaderContext context, const SavedRanks& saved)
    : context_(std::move(context)),
      transform_(context_.transform),
      pool_(static_cast<int>(config.threads)) {
  const std::function<void()> changed = [this] { advance(); };
  LoaderParts parts = make_sources({config, context_, transform_, pool_, changed}, saved);
  steps_per_epoch_ = parts.steps_per_epoch;
  fingerprint_ = parts.fingerprint;
  digest_ = parts.digest;
  next_epoch_ = parts.epoch;
  next_index_ = parts.index;
  sources_ = std::move(parts.sources);
  names_ = std::move(parts.names);
  waiting_.resize(sources_.size());
  given_.rank_ = context_.rank;
  given_.world_ = context_.world;
  given_.epoch_ = next_epoch_;
  given_.index_ = next_index_;
  for (const auto& source : sources_) given_.sources_.push_back(source->initial_state());
  for (const auto& source : sources_) source->start();
  advance();
}

Loader::~Loader() {
  pool_.stop();
  for (const auto& source : sources_) source->stop();
  for (const auto& [name, counts] : counts())
    if (counts.num_damaged() || counts.bad_shards) log::warn("data.", name, ": ", counts.text());
}

// Makes batches as long as every source has its part and not too many wait. Any thread.
void Loader::advance() {
  const std::lock_guard lock(mutex_);
  try {
    while (!failure_ && ahead_.size() < kBatchesAhead) {
      for (std::size_t i = 0; i < sources_.size(); ++i)
        if (!waiting_[i] && !(waiting_[i] = sources_[i]->try_next())) return;
      auto unfinished = std::make_shared<Unfinished>();
      Batch& batch = unfinished->batch;
      batch.epoch = next_epoch_;
      batch.index = next_index_++;
      for (auto& waiting : waiting_) {
        batch.ends_epoch = waiting->ends_epoch;
        unfinished->outputs.push_back(std::move(*waiting));
        waiting.reset();
      }
      if (batch.ends_epoch) {
        ++next_epoch_;
        next_index_ = 0;
      }
      fill(unfinished);
      ahead_.push_back(std::move(unfinished));
    }
  } catch (...) {
    failure_ = std::current_exception();
    ready_.notify_all();
  }
}

// With the lock: gives the pictures their places and has them written.
void Loader::fill(const std::shared_ptr<Unfinished>& unfinished) {
  ImageShape& shape = unfinished->batch.shape;
  for (SourceOutput& output : unfinished->outputs)
    for (PendingBatch& pending : output.batches) {
      pending.sequences.first_image = shape.num_images;
      const std::int64_t before = shape.num_images;
      if (pending.shape.num_images) {
        require<DataError>(
            !before || (shape.height == pending.shape.height && shape.width == pending.shape.width),
            "data: the sources of a step have pictures of ", shape.width, "x", shape.height,
            " and of ", pending.shape.width, "x", pending.shape.height);
        shape = pending.shape;
      }
      shape.num_images = before + pending.shape.num_images;
    }
  if (!shape.num_images) return finish(*unfinished);

  unfinished->batch.images = context_.allocate(shape);
  float* const first = unfinished->batch.images->data();
  std::vector<TaskPool::Task> tasks;
  for (const SourceOutput& output : unfinished->outputs)
    for (const PendingBatch& pending : output.batches)
      for (std::int64_t begin = 0; begin < pending.shape.num_images; begin += kImagesOfTask)
        tasks.emplace_back([this, unfinished, &pending, begin, first] {
          const std::int64_t numel = pending.shape.numel_each();
          const std::int64_t end = std::min(begin + kImagesOfTask, pending.shape.num_images);
          try {
            for (std::int64_t i = begin; i < end; ++i)
              write_image(pending, i, transform_,
                          first + (pending.sequences.first_image + i) * numel);
          } catch (...) {
            const std::lock_guard lock(mutex_);
            unfinished->failure = std::current_exception();
          }
          if (unfinished->tasks_left.fetch_sub(1) > 1) return;
          const std::lock_guard lock(mutex_);
          finish(*unfinished);
        });
  unfinished->tasks_left = static_cast<std::int64_t>(tasks.size());
  for (TaskPool::Task& task : tasks) pool_.submit(std::move(task), /*urgent=*/true);
}

// With the lock: the batch can be given.
void Loader::finish(Unfinished& unfinished) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    for (PendingBatch& pending : unfinished.outputs[i].batches) {
      unfinished.batch.sources.push_back(std::move(pending.sequences));
      sources_[i]->written(pending);
    }
    unfinished.outputs[i].batches.clear();
  }
  unfinished.is_ready = true;
  ready_.notify_all();
}

Batch Loader::next(const std::function<void()>& check) {
  std::shared_ptr<Unfinished> next;
  {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] {
      return ahead_.empty() ? failure_ != nullptr : ahead_.front()->is_ready;
    };
    while (!ready_.wait_for(lock, kLook, is_there)) {
      lock.unlock();
      if (check) check();
      lock.lock();
    }
    if (ahead_.empty()) std::rethrow_exception(failure_);
    next = std::move(ahead_.front());
    ahead_.pop_front();
    if (next->failure) {
      failure_ = next->failure;
      ahead_.clear();
      std::rethrow_exception(failure_);
    }
    for (std::size_t i = 0; i < sources_.size(); ++i)
      given_.sources_[i] = std::move(next->outputs[i].after);
    const Batch& batch = next->batch;
    given_.epoch_ = batch.epoch + batch.ends_epoch;
    given_.index_ = batch.ends_epoch ? 0 : batch.index + 1;
  }
  advance();
  if (next->batch.ends_epoch && context_.rank == 0) {
    const std::string text = report();
    log::info("data: epoch ", next->batch.epoch, " is over",
              text.empty()         ? ""
              : context_.world > 1 ? ". Of rank 0: "
                                   : ". ",
              text);
  }
  return std::move(next->batch);
}

LoaderState Loader::state() const {
  const std::lock_guard lock(mutex_);
  return given_;
}

std::int64_t Loader::epoch() const {
  const std::lock_guard lock(mutex_);
  return given_.epoch_;
}

std::int64_t Loader::index() const {
  const std::lock_guard lock(mutex_);
  return given_.index_;
}

std::vector<std::pair<std::string, Counts>> Loader::counts() const {
  const LoaderState at = state();
  std::vector<std::pair<std::string, Counts>> counts;
  for (std::size_t i = 0; i < names_.size(); ++i)
    counts.emplace_back(names_[i], at.sources_[i]->counts());
  return counts;
}

std::string Loader::report() const { return report_of(counts()); }

std::vector<SourceUsage> Loader::usage() const {
  std::vector<SourceUsage> usage;
  for (const auto& source : sources_) usage.push_back(source->usage());
  return usage;
}

}  // namespace floe::data
