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

#include "floe/data/laion.h"
#include "floe/data/mmc4.h"
#include "floe/data/sample.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

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
