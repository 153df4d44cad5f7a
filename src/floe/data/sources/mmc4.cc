#include "floe/data/sources/mmc4.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/data/python/base64.h"
#include "floe/data/python/str.h"
#include "floe/data/sample.h"
#include "floe/data/sources/sample_text.h"
#include "floe/data/sources/source_description.h"

namespace floe::data {
namespace {

// Decodes all pictures, because one that cannot be read drops the document even when no model would
// see it, and gives the sample those that are shown.
void add_pictures(Interleaved& document, const image::Transform& transform, Sample& sample) {
  const std::size_t each = transform.crop_bytes();
  sample.crops.resize(document.shown.size() * each);
  sample.sizes.resize(document.shown.size());
  ThreadImage pixels;
  image::Image& scratch = pixels.image();
  for (std::size_t i = 0; i < document.pictures.size(); ++i) {
    const Picture& picture = document.pictures[i];
    if (!picture.decoded) image::decode(picture.file, scratch);
    const image::Image& image = picture.decoded ? *picture.decoded : scratch;
    for (std::size_t place = 0; place < document.shown.size(); ++place) {
      if (document.shown[place] != i) continue;
      transform.crop(image, sample.crops.data() + place * each);
      sample.sizes[place] = {image.width, image.height};
    }
  }
  for (const std::size_t shown : document.shown)
    sample.images.push_back(document.pictures[shown].name);
}

}  // namespace

Mmc4Maker::Mmc4Maker(const token::Tokenizer& tokenizer, const token::FlamingoTokens& tokens,
                     const image::Transform& transform, Mmc4Settings settings)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      transform_(transform),
      settings_(settings),
      eos_(eos_text(tokenizer)) {
  require<ConfigError>(settings.max_images >= 1 && settings.min_images >= 0,
                       "data.mmc4.max_images must be at least 1 and min_images at least 0, not ",
                       settings.max_images, " and ", settings.min_images);
  require<ConfigError>(settings.max_tokens >= 1, "data.mmc4.max_tokens must be at least 1, not ",
                       settings.max_tokens);
}

Sample Mmc4Maker::sample_of(const RawSample& raw) const {
  const Field* field = raw.find("json");
  keep_if(field, reason::kNoDocument, "no json");
  std::optional<PythonJson> json;
  or_drop(reason::kBadJson, [&] { return &json.emplace(field->bytes); });
  const Json& root = json->root();
  keep_if(root.is(Json::Kind::object), reason::kBadDocument, "the document is no object");
  const bool chat = root.find("is_gpt") != nullptr;
  Interleaved document = chat ? read_chat(root, settings_) : read_page(root, settings_);

  Sample sample;
  sample.ids = cut_ids(tokenizer_, str(document.text, kEndOfChunkMark, eos_), settings_.max_tokens);
  const auto marks = std::count(sample.ids.begin(), sample.ids.end(), tokens_.image);
  keep_if(marks >= settings_.min_images, reason::kFewImages, marks,
          " <image> in the text, fewer than ", settings_.min_images);
  if (!chat && marks == 1) {
    const bool at_end =
        std::ssize(sample.ids) == settings_.max_tokens && sample.ids.back() == tokens_.image;
    keep_if(!at_end, reason::kImageAtEnd, "the only <image> is the last token");
    sample.single_image = true;
  }
  if (settings_.rules == Rules::corrected &&
      document.shown.size() > static_cast<std::size_t>(marks))
    document.shown.resize(static_cast<std::size_t>(marks));
  or_drop(reason::kBadImage, [&] {
    add_pictures(document, transform_, sample);
    return true;
  });
  sample.labels.resize(sample.ids.size());
  mmc4_labels(sample.ids, tokens_, sample.labels);
  return sample;
}

Outcome Mmc4Maker::make(const RawSample& raw) const {
  return sample_or_dropped(raw, [&] { return sample_of(raw); });
}

Bytes decode_picture_file(const Json& base64) {
  keep_if(base64.is(Json::Kind::string), reason::kBadBase64, "a picture is no base64 text");
  return or_drop(reason::kBadBase64, [&] { return decode_base64(base64.text); });
}

void leave_out_unreadable(std::vector<Picture>& pictures) {
  std::erase_if(pictures, [](Picture& picture) {
    try {
      picture.decoded = image::decode(picture.file);
      return false;
    } catch (const DataError&) {
      return true;
    }
  });
}

std::string tidy_marks(std::string_view text) {
  std::string tidy = replace(text, kEndOfChunkMark, "", 1);
  tidy = replace(tidy, str(" ", kEndOfChunkMark), kEndOfChunkMark);
  tidy = replace(tidy, str(kImageMark, " "), kImageMark);
  return replace(tidy, str(" ", kImageMark), kImageMark);
}

void describe(config::Schema<Mmc4Config>& s) {
  using C = Mmc4Config;
  describe_shards(s);
  s.field("max_images", &C::max_images, "Most pictures of a document").at_least(1).at_most(1000);
  s.field("min_images", &C::min_images, "Documents with fewer are dropped").at_least(0);
  s.field("max_tokens", &C::max_tokens, "Tokens after which a document is cut")
      .at_least(1)
      .at_most(1'000'000);
  s.field("text_sim_threshold", &C::text_sim_threshold,
          "Pictures less similar to their sentence are left out");
  s.check("min_images", [](const C& c) {
    return c.min_images > c.max_images
               ? str("is ", c.min_images, ", more than max_images, which is ", c.max_images,
                     ": no document could be kept")
               : "";
  });
}

std::unique_ptr<DataSource> mmc4_source() {
  using C = Mmc4Config;
  return make_source<C>(
      {.info = {.id = "mmc4",
                .help = "Interleaved documents",
                .files_key = "shards",
                .per_epoch_key = "num_samples",
                .has_images = true},
       .files = &C::shards,
       .weight = &C::weight,
       .per_batch = &C::batch_size,
       .per_epoch = &C::num_samples,
       .rules = [](const C& c, const MakerContext& context) {
         const Mmc4Settings settings{context.rules, c.text_sim_threshold, c.min_images,
                                     c.max_images, context.cut_after(c.max_tokens)};
         return SourceRules{.maker = std::make_shared<Mmc4Maker>(context.tokenizer, context.tokens,
                                                                 context.transform, settings),
                            .flips = BatchRule::Flips::of_sample,
                            .image_slots = c.max_images,
                            .max_tokens = c.max_tokens};
       }});
}

}  // namespace floe::data
