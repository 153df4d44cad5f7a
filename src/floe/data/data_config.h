// The block `data:`: what a run reads, and by which rules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/config/codec.h"
#include "floe/core/bytes.h"
#include "floe/data/sample.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}
namespace data {
inline auto enum_names(Rules) {
  using enum Rules;
  return std::to_array<std::pair<std::string_view, Rules>>(
      {{"openflamingo", openflamingo}, {"corrected", corrected}});
}
}  // namespace data

// Image-text pairs.
struct LaionConfig {
  std::string shards;  // OpenFlamingo's shard argument: `::` between parts, braces, `pipe:`, `s3:`
  std::int64_t batch_size = 64;
  double weight = 0.2;                      // of its loss
  std::optional<std::int64_t> num_samples;  // in an epoch, over all ranks; null: no end
};
void describe(config::Schema<LaionConfig>& s);

// Interleaved documents.
struct Mmc4Config {
  std::string shards;
  std::int64_t batch_size = 32;
  double weight = 1.0;
  std::optional<std::int64_t> num_samples;
  std::int64_t max_images = 6, min_images = 1;
  std::int64_t max_tokens = 256;
  double text_sim_threshold = 0.24;
};
void describe(config::Schema<Mmc4Config>& s);

// Plain text for a causal language model.
struct TextConfig {
  std::string files;           // written like `shards`: .jsonl (also compressed) or tars of .txt
  std::int64_t tokens = 4096;  // of a batch
  double weight = 1.0;
  std::optional<std::int64_t> num_tokens;  // in an epoch, over all ranks; null: no end
};
void describe(config::Schema<TextConfig>& s);

// The buffer out of which samples are drawn at random; every source has one (its workers share it).
struct ShuffleConfig {
  std::int64_t samples = 5000;  // that it holds, of each worker
  std::int64_t initial = 1000;  // from which on it gives some
  config::ByteSize memory{kGiB};
};
void describe(config::Schema<ShuffleConfig>& s);

struct DataConfig {
  std::optional<LaionConfig> laion;
  std::optional<Mmc4Config> mmc4;
  std::optional<TextConfig> text;
  std::optional<std::string>
      batches;  // a safetensors file of prepared batches; {rank} is filled in
  data::Rules rules = data::Rules::openflamingo;
  bool resampled = false;    // shards are drawn with replacement
  std::int64_t workers = 1;  // logical streams of a source: part of the order
  std::int64_t threads = 4;  // that decode: never part of the order
  double max_bad_fraction = 0.05;
  ShuffleConfig shuffle;

  // The names of the sources in this block, in the order in which a step has them.
  std::vector<std::string> sources() const;
};
void describe(config::Schema<DataConfig>& s);

// Batches that every rank gets of each source in an epoch; nullopt where the data has no end.
// Throws ConfigError when the sources disagree, and says which num_samples would do.
std::optional<std::int64_t> batches_per_epoch(const DataConfig& config, std::int64_t world);

}  // namespace floe
