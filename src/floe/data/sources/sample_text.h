// What the makers of several sources share: marks, labels, how text is cut, memory for a picture.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/image/image.h"
#include "floe/token/tokenizer.h"

namespace floe::data {

// Which tokens a model learns to predict: label = id or kNoLabel, by OpenFlamingo's training loop.
// Ids may be padded or not; a pad id never has a label.

// Everything but pad and `<image>`.
void laion_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                  std::span<std::int32_t> labels);

// From behind each `<image>` up to and with the next `<|endofchunk|>`; so eos at the end is never
// learned.
void mmc4_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                 std::span<std::int32_t> labels);

// Memory for the pixels of one picture, kept by its thread: fresh pages for every picture cost a
// tenth of the time that decoding takes. One at a time in a thread.
class ThreadImage {
 public:
  ThreadImage() = default;
  // A huge picture does not stay.
  ~ThreadImage() {
    if (static_cast<std::int64_t>(image().rgb.capacity()) > kMostKept) image() = {};
  }
  ThreadImage(const ThreadImage&) = delete;
  ThreadImage& operator=(const ThreadImage&) = delete;

  image::Image& image() {
    thread_local image::Image kept;
    return kept;
  }

 private:
  static constexpr std::int64_t kMostKept = 32 * kMiB;
};

inline constexpr std::string_view kImageMark = "<image>", kEndOfChunkMark = "<|endofchunk|>";

// Without the marks, for corrected rules: also without those that the removal of others forms.
std::string without_marks(std::string_view text);

// Ids of the text, cut on the right to `max_tokens`. Throws Drop (bad_text) when the text
// is not UTF-8.
std::vector<std::int32_t> cut_ids(const token::Tokenizer& tokenizer, std::string_view text,
                                  std::int64_t max_tokens);

// The text of the eos token; throws ConfigError when the tokenizer has none.
std::string eos_text(const token::Tokenizer& tokenizer);
// Its id; `block` is whose samples end with it, for the ConfigError.
std::int32_t eos_id(const token::Tokenizer& tokenizer, std::string_view block);

}  // namespace floe::data
