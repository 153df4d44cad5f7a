// The loader: batches of every source of the block `data:`, decoded ahead by several threads,
// deterministic, resumable to the sample.
//
//   Loader loader(config, {.rank = 0, .world = 2, .tokenizer = &tokenizer, .tokens = marks});
//   while (training) {
//     Batch batch = loader.next();
//     …
//     if (saves) state = loader.state().save();
//   }
//   Loader again(config, context, {states of all ranks});
#pragma once

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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "floe/core/error.h"
#include "floe/data/data_config.h"
#include "floe/data/loader/batch.h"
#include "floe/data/loader/batch_source.h"
#include "floe/data/loader/saved_ranks.h"
#include "floe/data/loader/task_pool.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

namespace floe::data {

// What the data is called in the configuration, for messages.
struct DataKeys {
  std::map<std::string, std::string> by_source;  // where it is not the key of its own block
  std::string batches = "data.batches";

  // "data.laion.shards"
  std::string of(const DataSource& source) const {
    const auto found = by_source.find(source.id());
    return found == by_source.end() ? source.files_key() : found->second;
  }
};

// A saved state belongs to other data than the configuration names: `key` was `before` and is
// `now`.
class OtherData : public ConfigError {
 public:
  OtherData(const std::string& key, const std::string& before, const std::string& now);
};

// What the configuration does not say.
struct LoaderContext {
  std::int64_t rank = 0, world = 1;
  std::uint64_t seed = 0;
  // With the tokens of `tokens` added; must live as long as the loader. Prepared batches need none.
  const token::Tokenizer* tokenizer = nullptr;
  token::FlamingoTokens tokens;  // of laion and mmc4
  image::TransformOptions transform;
  std::int64_t positions = kNoLimit;  // of the model: longer texts are cut
  AllocateImages allocate = images_on_heap();
  DataKeys keys;
};

// Where a rank's loader stands between two steps. Cheap to take and to keep.
class LoaderState {
 public:
  // Some ten kilobytes per worker. The text is JSON.
  nlohmann::json save() const;

 private:
  friend class Loader;
  std::int64_t rank_ = 0, world_ = 1, epoch_ = 0, index_ = 0;
  std::vector<std::shared_ptr<const SourceState>> sources_;
};

// "laion: 100 samples read, 97 used; …", a line per source that has read something.
std::string report_of(const std::vector<std::pair<std::string, Counts>>& counts);

// Threads: one caller at a time.
class Loader {
 public:
  // Begins at the first sample of epoch 0. Throws ConfigError for what cannot be read this way.
  Loader(const DataConfig& config, LoaderContext context);
  // Goes on where a run was saved; `saved` has the states of all its ranks, in order. With the same
  // numbers of ranks and workers the next step is exactly the one that would have followed, and
  // only the state of this rank is asked for. Otherwise the rest of the epoch is dealt anew
  // (epoch_rest.h) and the log says so.
  // Throws OtherData when the states are of other sources, shards, rules or seed, DataError when
  // they are damaged. Threads, sizes of batches and lengths of epochs may differ.
  Loader(const DataConfig& config, LoaderContext context, const SavedRanks& saved);
  Loader(const DataConfig& config, LoaderContext context, std::span<const nlohmann::json> saved)
      : Loader(config, std::move(context), SavedRanks::held(saved)) {}
  // Tells what was damaged.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next batch. There is always one: after the last of an epoch comes the next epoch.
  // Throws DataError when the data cannot be used; later calls do so again. While it waits it calls
  // `check` several times a second, which may throw; the batch then comes with the next call.
  Batch next(const std::function<void()>& check = {});
  // Behind the last batch that next() gave.
  LoaderState state() const;
  // Epochs that are over, and batches of the one after them that are given.
  std::int64_t epoch() const;
  std::int64_t index() const;

  std::optional<std::int64_t> steps_per_epoch() const { return steps_per_epoch_; }
  // Of what has to be the same on all ranks and is read from a file of each: the number of prepared
  // steps and their sources. 0 for other data.
  std::uint64_t fingerprint() const { return fingerprint_; }
  // Of the contents of this rank's prepared batches (the first and the last); 0 for other data.
  std::uint64_t digest() const { return digest_; }
  // What became of the samples up to the last step, by source.
  std::vector<std::pair<std::string, Counts>> counts() const;
  // In words, a line per source; of this rank.
  std::string report() const;
  std::vector<SourceUsage> usage() const;

 private:
  struct Unfinished;

  void advance();
  void fill(const std::shared_ptr<Unfinished>& batch);
  void finish(Unfinished& batch);

  LoaderContext context_;
  image::Transform transform_;
  std::optional<std::int64_t> steps_per_epoch_;
  std::uint64_t fingerprint_ = 0, digest_ = 0;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<BatchSource>> sources_;
  TaskPool pool_;

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Unfinished>> ahead_;     // in the order in which they are given
  std::vector<std::optional<SourceOutput>> waiting_;  // for the other sources of their batch
  std::exception_ptr failure_;                        // after what is in ahead_
  std::int64_t next_epoch_ = 0, next_index_ = 0;      // of the batch that is made next
  LoaderState given_;
};

}  // namespace floe::data
