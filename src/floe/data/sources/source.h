// A data source: a block under `data:`, and what becomes of the files that it names. There is one
// object per kind of source, in the registry; what a run has set is in DataConfig.
// docs/adding-a-data-source.md says how to add one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/data/data_config.h"
#include "floe/data/sample.h"
#include "floe/data/stream/stream_batches.h"
#include "floe/data/stream/stream_reader.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

namespace floe::data {

// What a maker may use beside its own block. Tokenizer and transform outlive it.
struct MakerContext {
  const token::Tokenizer& tokenizer;
  const token::FlamingoTokens& tokens;
  const image::Transform& transform;
  Rules rules = Rules::openflamingo;
  std::int64_t positions = kNoLimit;  // of the model: tokens that a sequence may have

  // Where a sample is cut, by its block or by the model.
  std::int64_t cut_after(std::int64_t max_tokens) const { return std::min(max_tokens, positions); }
};

// What a source makes of its files.
struct SourceRules {
  std::shared_ptr<const SampleMaker> maker;
  OpenShard open = open_tar;
  BatchRule::Flips flips = BatchRule::Flips::none;
  std::int64_t image_slots = 0;  // of SourceBatch
  std::int64_t max_tokens = 0;   // of a sample at most, by its block; 0: no limit but the batch's
};

struct SourceInfo {
  std::string id;    // "laion": its block, and its name in metrics, states and prepared batches
  std::string help;  // of its block
  std::string files_key;       // "shards": what it reads, written as shard_list.h says
  std::string per_epoch_key;   // "num_samples"
  bool counts_tokens = false;  // batches and epochs have so many tokens, not samples
  bool has_images = false;
};

class DataSource {
 public:
  explicit DataSource(SourceInfo info) : info_(std::move(info)) {}
  virtual ~DataSource() = default;
  DataSource(const DataSource&) = delete;
  DataSource& operator=(const DataSource&) = delete;

  const SourceInfo& info() const { return info_; }
  const std::string& id() const { return info_.id; }
  // In PackedBatch::source and wherever sources are listed: its place in data_sources().
  std::int64_t number() const { return number_; }
  // "data.laion.shards"
  std::string files_key() const { return "data." + id() + "." + info_.files_key; }
  std::string per_epoch_key() const { return "data." + id() + "." + info_.per_epoch_key; }

  // Of its block in a configuration.
  virtual void describe(config::Schema<DataConfig>& schema) const = 0;
  virtual bool is_set(const DataConfig& config) const = 0;
  virtual void set(DataConfig& config) const = 0;  // to its defaults
  virtual void remove(DataConfig& config) const = 0;
  virtual double weight(const DataConfig& config) const = 0;  // its default where it is not set
  // The others need a block that is set.
  virtual std::string& files(DataConfig& config) const = 0;
  virtual const std::string& files(const DataConfig& config) const = 0;
  // Samples (or tokens) of a batch on one rank, and of an epoch over all ranks.
  virtual std::int64_t per_batch(const DataConfig& config) const = 0;
  virtual std::optional<std::int64_t> per_epoch(const DataConfig& config) const = 0;
  // Throws ConfigError for what cannot be made.
  virtual SourceRules rules(const DataConfig& config, const MakerContext& context) const = 0;

 private:
  friend const std::vector<std::unique_ptr<const DataSource>>& data_sources();

  SourceInfo info_;
  std::int64_t number_ = 0;
};

// Every source that there is, in the order in which a step has them.
const std::vector<std::unique_ptr<const DataSource>>& data_sources();
// nullptr: there is none.
const DataSource* find_source(std::string_view id);
const std::string& source_name(std::int64_t number);
inline std::size_t num_sources() { return data_sources().size(); }
// Those that the configuration sets.
std::vector<const DataSource*> sources_of(const DataConfig& config);
// "laion.shards, mmc4.shards, text.files": what could be set, each with `prefix` in front.
std::string source_keys(std::string_view prefix = "");

}  // namespace floe::data
