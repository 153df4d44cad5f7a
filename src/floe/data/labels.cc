#include "floe/data/labels.h"

#include "floe/core/error.h"
#include "floe/data/sample.h"

namespace floe::data {

void laion_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                  std::span<std::int32_t> labels) {
  require(ids.size() == labels.size(), "labels need one place per id");
  for (std::size_t i = 0; i < ids.size(); ++i)
    labels[i] = ids[i] == tokens.pad || ids[i] == tokens.image ? kNoLabel : ids[i];
}

void mmc4_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                 std::span<std::int32_t> labels) {
  require(ids.size() == labels.size(), "labels need one place per id");
  bool learns = false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    learns = learns || ids[i] == tokens.image;
    labels[i] = learns && ids[i] != tokens.pad && ids[i] != tokens.image ? ids[i] : kNoLabel;
    learns = learns && ids[i] != tokens.endofchunk;
  }
}

}  // namespace floe::data
