// What training would see of shards: every sample in order, without shuffling and coins. The shards
// are walked, grouped and made into samples by the code that training runs.
//
//   Inspection inspection({.shards = data::expand_shards("laion/*.tar"), .tokenizer = "opt-1.3b"});
//   inspection.run([](const RawSample& raw, const Outcome& outcome) { … });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/data_config.h"
#include "floe/data/sample.h"
#include "floe/data/sources/source.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

namespace floe::inspect {

using data::Dropped;
using data::Field;
using data::Outcome;
using data::RawSample;
using data::Sample;

// In place of a tokenizer when none is given: only the marks and the end become ids, one each. The
// rules of samples then apply as far as they do not hang on the length of texts.
class MarksOnly : public token::Tokenizer {
 public:
  MarksOnly();
  static token::FlamingoTokens tokens();

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              bool add_special = true) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const override;
  std::int32_t id_of(std::string_view token) const override;
  std::string token_of(std::int32_t id) const override;
  std::int64_t size() const override;
  std::int64_t add_special_tokens(const std::vector<std::string>& tokens) override;
  std::string describe() const override;
};

struct InspectOptions {
  std::vector<std::string> shards;
  const data::DataSource* source = nullptr;  // null: guessed from the first sample
  DataConfig data;                           // rules, and the blocks of sources where they differ
  std::string tokenizer;                     // a folder; empty: texts are not turned into ids
  std::optional<std::int64_t> limit;         // stop after so many samples
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

  using Visit = std::function<void(const RawSample& raw, const Outcome& outcome)>;
  // Once. Damaged shards are logged and left.
  void run(const Visit& visit);

  // Known from the first visit on.
  const data::DataSource& source() const;
  bool has_tokenizer() const { return !options_.tokenizer.empty(); }
  const token::Tokenizer& tokenizer() const { return *tokenizer_; }
  const InspectOptions& options() const { return options_; }
  int crop_size() const { return transform_.size(); }
  std::int64_t image_slots() const { return rules_.image_slots; }  // the most pictures of a sample
  // One for each shard of the options; complete after run().
  const std::vector<ShardTally>& tallies() const { return tallies_; }

 private:
  void choose_rules();

  InspectOptions options_;
  image::Transform transform_;
  std::unique_ptr<token::Tokenizer> tokenizer_;
  token::FlamingoTokens tokens_;
  data::SourceRules rules_;
  std::vector<ShardTally> tallies_;
};

// Text of lines; MMC4 when its only picture could be inside of a JSON document; else LAION.
const data::DataSource& guess_source(const RawSample& sample);

}  // namespace floe::inspect
