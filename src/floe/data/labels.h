// Which tokens a model learns to predict: label = id or kNoLabel, by OpenFlamingo's training loop.
// Ids may be padded or not; a pad id never has a label.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "floe/token/tokenizer.h"

namespace floe::data {

// Everything but pad and `<image>`.
void laion_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                  std::span<std::int32_t> labels);

// From behind each `<image>` up to and with the next `<|endofchunk|>`; so eos at the end is never
// learned.
void mmc4_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                 std::span<std::int32_t> labels);

}  // namespace floe::data
