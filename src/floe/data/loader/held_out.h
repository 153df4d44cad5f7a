// Held-out data, once from beginning to end: the shards of a rank in order, without shuffling,
// draws or flips. Ranks may have different numbers of batches, also none.
//
//   HeldOut held_out(config, context, {.max_batches = 100});
//   while (auto batch = held_out.next()) evaluate(*batch);
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "floe/data/loader/loader.h"

namespace floe::data {

struct HeldOutOptions {
  std::optional<std::int64_t> max_batches;  // of each source
  // Once it is true, next() soon says that there is nothing more.
  const std::atomic<bool>* stop = nullptr;
};

class HeldOut {
 public:
  // `config` as for a Loader, with the held-out shards in it; context.keys says what they are
  // called. Throws ConfigError for shards that cannot be.
  HeldOut(const DataConfig& config, const LoaderContext& context, const HeldOutOptions& options);
  ~HeldOut();
  HeldOut(const HeldOut&) = delete;
  HeldOut& operator=(const HeldOut&) = delete;

  // One batch of one source; nothing at the end. The last batch of a source may be smaller. Damaged
  // samples and shards are left out.
  std::optional<Batch> next();
  // Reads every source up to its first usable sample, for counts(). Then nothing else may be read.
  void probe();
  // What became of the samples of this rank so far, by source. Of prepared batches there is none.
  std::vector<std::pair<const DataSource*, Counts>> counts() const;
  // As SourcePlan, of all ranks.
  std::vector<std::pair<const DataSource*, std::vector<std::string>>> shards() const;

 private:
  struct OfSource;

  std::optional<Batch> next_of(OfSource& source);
  // Reads and makes up to `most` samples; false: there are no more.
  bool read(OfSource& source, std::int64_t most, std::vector<Sample>& samples);
  bool is_stopped() const { return options_.stop && options_.stop->load(); }

  LoaderContext context_;
  image::Transform transform_;
  HeldOutOptions options_;
  std::unique_ptr<Loader> prepared_;  // of data.batches
  std::vector<std::unique_ptr<OfSource>> sources_;
  std::size_t at_ = 0;  // the source that is read
  std::int64_t num_given_ = 0;
  TaskPool pool_;
};

}  // namespace floe::data
