// LAION: one picture and its caption.
//
// The reference's rules: a sample needs `txt` and one of `jpg`, `png`, `jpeg`; every field that
// WebDataset would decode must decode (so bad metadata drops a good pair); the text is
// `<image>` + caption without white space at its ends + `<|endofchunk|>` + eos, cut to max_tokens.
//
// Corrected rules: only the caption and the pictures are looked at; of several pictures the first
// readable one is taken; `<image>` and `<|endofchunk|>` in the caption are taken out, as they would
// count as pictures and ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "floe/data/sample.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

namespace floe::config {
template <class T>
class Schema;
}

namespace floe::data {

struct LaionConfig {
  std::string shards;  // OpenFlamingo's shard argument: `::` between parts, braces, `pipe:`, `s3:`
  std::int64_t batch_size = 64;
  double weight = 0.2;                      // of its loss
  std::optional<std::int64_t> num_samples;  // in an epoch, over all ranks; null: no end
  std::int64_t max_tokens = 32;             // the reference's; no key
};
void describe(config::Schema<LaionConfig>& s);

// Whether WebDataset's image decoder takes fields of this suffix (by its last part:
// `seg.jpg` is one).
bool is_image_suffix(std::string_view suffix);

struct LaionSettings {
  Rules rules = Rules::openflamingo;
  std::int64_t max_tokens = 32;
};

// Keeps references: tokenizer and transform must live as long.
class LaionMaker : public SampleMaker {
 public:
  // `tokens` as token::add_flamingo_tokens(tokenizer) gave them.
  LaionMaker(const token::Tokenizer& tokenizer, const token::FlamingoTokens& tokens,
             const image::Transform& transform, LaionSettings settings);
  Outcome make(const RawSample& raw) const override;

 private:
  Sample sample_of(const RawSample& raw) const;

  const token::Tokenizer& tokenizer_;
  token::FlamingoTokens tokens_;
  const image::Transform& transform_;
  LaionSettings settings_;
  std::string eos_;
};

}  // namespace floe::data
