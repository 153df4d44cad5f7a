// Held-out data, once from beginning to end: the shards of a rank in order, without shuffling, draws or
// flips. Ranks may have different numbers of batches, also none.
//
//   HeldOut held_out(config, context, {});
//   while (auto step = held_out.next()) evaluate(*step);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "floe/data/loader.h"

namespace floe::data {

class HeldOut {
 public:
  // `config` as for a Loader, with the held-out shards in it. At most `max_batches` of each source.
  // Throws ConfigError for shards that cannot be.
  HeldOut(const DataConfig& config, const LoaderContext& context,
          std::optional<std::int64_t> max_batches);
  ~HeldOut();
  HeldOut(const HeldOut&) = delete;
  HeldOut& operator=(const HeldOut&) = delete;

  // One batch of one source; nothing at the end. The last batch of a source may be smaller. Damaged
  // samples and shards are left out.
  std::optional<Step> next();
  // Samples that were left out because they are damaged.
  std::int64_t num_bad() const { return num_bad_; }

 private:
  struct OfSource;

  std::optional<Step> next_of(OfSource& source);

  LoaderContext context_;
  image::Transform transform_;
  std::optional<std::int64_t> max_batches_;
  std::unique_ptr<Loader> prepared_;  // of data.batches
  std::vector<std::unique_ptr<OfSource>> sources_;
  std::size_t at_ = 0;  // the source that is read
  std::int64_t num_given_ = 0;
  std::int64_t num_bad_ = 0;
  TaskPool pool_;
};

}  // namespace floe::data
