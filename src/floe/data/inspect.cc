#include "floe/data/inspect.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/data/laion_fields.h"
#include "floe/data/marks_only.h"
#include "floe/data/sample_reader.h"

namespace floe::data {

std::string_view name_of(Source source) { return source == Source::laion ? "laion" : "mmc4"; }

Source guess_source(const RawSample& sample) {
  const bool pictures = std::any_of(sample.fields.begin(), sample.fields.end(),
                                    [](const Field& f) { return is_image_suffix(f.suffix); });
  return sample.find("json") && !pictures && !sample.find("txt") ? Source::mmc4 : Source::laion;
}

Inspection::Inspection(InspectOptions options) : options_(std::move(options)) {
  if (has_tokenizer()) {
    tokenizer_ = token::load_tokenizer(options_.tokenizer);
    tokens_ = token::add_flamingo_tokens(*tokenizer_);
  } else {
    tokenizer_ = std::make_unique<MarksOnly>();
    tokens_ = MarksOnly::tokens();
  }
  for (const auto& shard : options_.shards) tallies_.push_back({.shard = shard});
}

Inspection::~Inspection() = default;

Source Inspection::source() const {
  require(options_.source.has_value(), "nothing has been inspected yet");
  return *options_.source;
}

void Inspection::choose_maker(const RawSample& first) {
  if (!options_.source) options_.source = guess_source(first);
  if (*options_.source == Source::laion) {
    LaionSettings settings{.rules = options_.rules};
    settings.max_tokens = options_.max_tokens.value_or(settings.max_tokens);
    maker_ = std::make_unique<LaionMaker>(*tokenizer_, tokens_, transform_, settings);
  } else {
    Mmc4Settings settings{.rules = options_.rules,
                          .text_sim_threshold = options_.text_sim_threshold,
                          .min_images = options_.min_images,
                          .max_images = options_.max_images};
    settings.max_tokens = options_.max_tokens.value_or(settings.max_tokens);
    maker_ = std::make_unique<Mmc4Maker>(*tokenizer_, tokens_, transform_, settings);
  }
}

void Inspection::run(const Visit& visit) {
  std::size_t next = 0;  // shard
  const auto next_shard = [&] {
    return next < options_.shards.size() ? std::optional(options_.shards[next++]) : std::nullopt;
  };
  const auto tally = [&]() -> ShardTally& { return tallies_[next - 1]; };
  SampleReader reader(
      next_shard, options_.rules,
      [&](const std::string&, const std::string& what) {
        tally().damage = what;
        log::warn("left behind: ", what);
      },
      [&](const std::string&, const std::string&, std::size_t num_bytes) {
        ++tally().files;
        tally().bytes += static_cast<std::int64_t>(num_bytes);
      });
  std::int64_t seen = 0;
  while (!options_.limit || seen < *options_.limit) {
    const auto raw = reader.next();
    if (!raw) break;
    ++seen;
    if (!maker_) choose_maker(*raw);
    const auto begins = std::find_if(tallies_.begin(), tallies_.end(),
                                     [&](const ShardTally& t) { return t.shard == raw->shard; });
    if (begins != tallies_.end()) ++begins->samples;
    visit(*raw, maker_->make(*raw));
  }
}

}  // namespace floe::data
