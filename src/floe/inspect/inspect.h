// What training would see of shards: every sample in order, without shuffling and coins.
//
//   Inspection inspection({.shards = expand_shards("laion/*.tar"), .tokenizer = "opt-1.3b"});
//   inspection.run([](const RawSample& raw, const Outcome& outcome) { … });
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/sample.h"
#include "floe/data/shards/grouping.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

namespace floe::data {

// In place of a tokenizer when none is given: only the marks and the end become ids, one each. The rules
// of samples then apply as far as they do not hang on the length of texts.

class MarksOnly : public token::Tokenizer {
 public:
  MarksOnly();

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              bool add_special = true) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const override;
  std::int32_t id_of(std::string_view token) const override;
  std::string token_of(std::int32_t id) const override;
  std::int64_t size() const override;
  std::int64_t add_special_tokens(const std::vector<std::string>& tokens) override;
  std::string describe() const override;

  static token::FlamingoTokens tokens();
};

}  // namespace floe::data

// A sequence of shards as a stream of raw samples. A shard that is missing, truncated or damaged is
// reported and left; complete files before the damage count.
//
//   SampleReader reader([&] { return next_shard(); }, Rules::openflamingo, report);
//   while (auto raw = reader.next()) …

namespace floe {
class TarReader;
}

namespace floe::data {

class SampleReader {
 public:
  // The place of the next shard (as expand_shards gives them); nullopt: there is none.
  using NextShard = std::function<std::optional<std::string>()>;
  // Called once per shard that could not be read to its end.
  using OnDamage = std::function<void(const std::string& shard, const std::string& what)>;

  // Called for every file, also for those that belong to no sample.
  using OnFile =
      std::function<void(const std::string& shard, const std::string& name, std::size_t num_bytes)>;

  SampleReader(NextShard next_shard, Rules rules, OnDamage on_damage, OnFile on_file = {});
  ~SampleReader();

  // nullopt: all shards have been read. Blocks while a file or pipe is read.
  std::optional<RawSample> next();

 private:
  // The next sample that this shard completes; nullopt at its end.
  std::optional<RawSample> next_of_shard();

  NextShard next_shard_;
  OnDamage on_damage_;
  OnFile on_file_;
  Grouper grouper_;
  std::string shard_;
  std::unique_ptr<TarReader> tar_;
  bool ended_ = false;
};

}  // namespace floe::data

namespace floe::data {

enum class Source { laion, mmc4 };
std::string_view name_of(Source source);

struct InspectOptions {
  std::vector<std::string> shards;
  std::optional<Source> source;  // none: guessed from the first sample
  std::string tokenizer;         // a folder; empty: texts are not turned into ids
  Rules rules = Rules::openflamingo;
  std::optional<std::int64_t> max_tokens;  // none: 32 for LAION, 256 for MMC4
  double text_sim_threshold = 0.24;
  std::int64_t min_images = 1, max_images = 6;
  std::optional<std::int64_t> limit;  // stop after so many samples
};

// What a shard holds, whatever becomes of it.
struct ShardTally {
  std::string shard;
  std::int64_t files = 0, bytes = 0;
  std::int64_t samples = 0;  // that begin in it
  std::string damage;        // empty: it was read to its end
};

class Inspection {
 public:
  explicit Inspection(InspectOptions options);
  ~Inspection();

  using Visit = std::function<void(const RawSample& raw, const Outcome& outcome)>;
  // Once. Damaged shards are logged and left.
  void run(const Visit& visit);

  // Known from the first visit on.
  Source source() const;
  bool has_tokenizer() const { return !options_.tokenizer.empty(); }
  const token::Tokenizer& tokenizer() const { return *tokenizer_; }
  const InspectOptions& options() const { return options_; }
  int crop_size() const { return transform_.size(); }
  // One for each shard of the options; complete after run().
  const std::vector<ShardTally>& tallies() const { return tallies_; }

 private:
  void choose_maker(const RawSample& first);

  InspectOptions options_;
  image::Transform transform_;
  std::unique_ptr<token::Tokenizer> tokenizer_;
  token::FlamingoTokens tokens_;
  std::unique_ptr<SampleMaker> maker_;
  std::vector<ShardTally> tallies_;
};

// MMC4 when its only picture could be inside of a JSON document, else LAION.
Source guess_source(const RawSample& sample);

}  // namespace floe::data
