// MMC4: interleaved documents, one JSON each with its pictures as base64 (as `floe convert mmc4`
// writes them), and documents of the ChatGPT kind (`is_gpt`).
//
// The reference's rules, in short: pictures of at least 11 000 bytes are matched one-to-one with
// sentences (maximum total similarity), pairs below the threshold are left out, the first
// max_images in image order are kept, each matched sentence gets `<|endofchunk|><image>` in front,
// the text is cut to max_tokens, and documents with fewer than min_images markers left are dropped.
//
// Pictures are decoded last, after it is clear that the rest would be kept; so of several
// defects of a document another one may be named than the reference would, but never is
// another decision made.
//
// Corrected rules differ in this:
// - pictures stand in the order of their markers in the text, and the first max_images of the text
//   are kept; ChatGPT documents take for each marker the picture it names;
// - ChatGPT documents with more than max_images markers are cut before marker max_images + 1;
// - an unreadable picture is left out, with its marker, instead of the whole document;
// - `<image>` and `<|endofchunk|>` in the page's own text are taken out;
// - pictures whose marker was cut off are left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/python/json.h"
#include "floe/data/sample.h"
#include "floe/image/image.h"
#include "floe/image/transform.h"
#include "floe/token/tokenizer.h"

namespace floe::config {
template <class T>
class Schema;
}

namespace floe::data {

struct Mmc4Config {
  std::string shards;
  std::int64_t batch_size = 32;
  double weight = 1.0;                      // of its loss
  std::optional<std::int64_t> num_samples;  // in an epoch, over all ranks; null: no end
  std::int64_t max_images = 6, min_images = 1;
  std::int64_t max_tokens = 256;
  double text_sim_threshold = 0.24;
};
void describe(config::Schema<Mmc4Config>& s);

struct Mmc4Settings {
  Rules rules = Rules::openflamingo;
  double text_sim_threshold = 0.24;
  std::int64_t min_images = 1, max_images = 6;
  std::int64_t max_tokens = 256;
};

// Keeps references: tokenizer and transform must live as long.
class Mmc4Maker : public SampleMaker {
 public:
  // `tokens` as token::add_flamingo_tokens(tokenizer) gave them.
  Mmc4Maker(const token::Tokenizer& tokenizer, const token::FlamingoTokens& tokens,
            const image::Transform& transform, Mmc4Settings settings);
  // A kept sample with `single_image` is subject to the caller's coin (Note [Draws] in sample.h).
  Outcome make(const RawSample& raw) const override;

 private:
  Sample sample_of(const RawSample& raw) const;

  const token::Tokenizer& tokenizer_;
  token::FlamingoTokens tokens_;
  const image::Transform& transform_;
  Mmc4Settings settings_;
  std::string eos_;
};

// A picture of a document.
struct Picture {
  ImageName name;
  Bytes file;
  std::optional<image::Image>
      decoded;  // filled by corrected rules, which must look before matching
};

// A document on its way to a sample: text with marks, and the pictures they stand for.
struct Interleaved {
  std::string text;                // without the end that every text gets
  std::vector<Picture> pictures;   // all that the rules want to be readable
  std::vector<std::size_t> shown;  // those of them that a model sees, in the order of the tensor
};

// A page: sentences and pictures matched by similarity. Throws Drop.
Interleaved read_page(const Json& document, const Mmc4Settings& settings);

// A document that ChatGPT wrote: text that mentions its pictures as `_!_IMAGE1_!_`. Throws Drop.
Interleaved read_chat(const Json& document, const Mmc4Settings& settings);

// The content of a base64 string; drops the document when it is none.
Bytes decode_picture_file(const Json& base64);

// Decodes the pictures and leaves out those that cannot be read.
void leave_out_unreadable(std::vector<Picture>& pictures);

// Takes the first `<|endofchunk|>` out (nothing ends before the first picture), and spaces around
// marks.
std::string tidy_marks(std::string_view text);

}  // namespace floe::data
