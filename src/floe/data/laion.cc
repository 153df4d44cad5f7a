#include "floe/data/laion.h"

#include <array>

#include "floe/core/error.h"
#include "floe/data/drop.h"
#include "floe/data/labels.h"
#include "floe/data/laion_fields.h"
#include "floe/data/pixel_scratch.h"
#include "floe/data/sample_text.h"
#include "floe/data/unicode.h"
#include "floe/image/image.h"

namespace floe::data {
namespace {

// In order of preference.
std::vector<const Field*> pictures_of(const RawSample& raw) {
  std::vector<const Field*> pictures;
  for (const std::string_view suffix : {"jpg", "png", "jpeg"})
    if (const Field* field = raw.find(suffix)) pictures.push_back(field);
  return pictures;
}

// The first of them (which must be readable), or with corrected rules the first readable one; its
// pixels go to `image`.
const Field* decode_picture(const std::vector<const Field*>& pictures, Rules rules,
                            image::Image& image) {
  std::string defect;
  for (const Field* field : pictures) {
    try {
      image::decode(field->bytes, image);
      return field;
    } catch (const DataError& error) {
      if (defect.empty()) defect = error.what();
      if (rules == Rules::openflamingo) break;
    }
  }
  throw Drop{reason::kBadImage, defect};
}

}  // namespace

LaionMaker::LaionMaker(const token::Tokenizer& tokenizer, const token::FlamingoTokens& tokens,
                       const image::Transform& transform, LaionSettings settings)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      transform_(transform),
      settings_(settings),
      eos_(eos_text(tokenizer)) {
  require<ConfigError>(settings.max_tokens >= 1, "data.laion.max_tokens must be at least 1, not ",
                       settings.max_tokens);
}

Sample LaionMaker::sample_of(const RawSample& raw) const {
  const Field* caption = raw.find("txt");
  const auto pictures = pictures_of(raw);
  keep_if(caption && !pictures.empty(), reason::kNoCaptionOrImage,
          caption ? "no jpg, png or jpeg" : "no txt");
  const bool corrected = settings_.rules == Rules::corrected;
  keep_if(is_utf8(as_text(caption->bytes)), reason::kBadText, "'txt' is not UTF-8");
  if (!corrected) check_fields(raw, pictures.front());
  PixelScratch pixels;
  const Field* picture = decode_picture(pictures, settings_.rules, pixels.image());

  Sample sample;
  sample.shard = raw.shard;
  sample.key = raw.key;
  sample.images.emplace_back(picture->suffix);
  sample.sizes.push_back({pixels.image().width, pixels.image().height});
  sample.crops.resize(transform_.crop_bytes());
  or_drop(reason::kBadImage, [&] {
    transform_.crop(pixels.image(), sample.crops.data());
    return true;
  });
  const std::string_view text = as_text(caption->bytes);
  const std::string words(strip(corrected ? without_marks(text) : std::string(text)));
  sample.ids =
      cut_ids(tokenizer_, str(kImageMark, words, kEndOfChunkMark, eos_), settings_.max_tokens);
  sample.labels.resize(sample.ids.size());
  laion_labels(sample.ids, tokens_, sample.labels);
  return sample;
}

Outcome LaionMaker::make(const RawSample& raw) const {
  try {
    return sample_of(raw);
  } catch (const Drop& drop) {
    return Dropped{raw.shard, raw.key, std::string(drop.reason), drop.detail};
  }
}

}  // namespace floe::data
