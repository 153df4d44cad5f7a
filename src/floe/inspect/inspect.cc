#include "floe/inspect/inspect.h"

#include <algorithm>
#include <array>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/data/python/str.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/sample_text.h"
#include "floe/io/tar/tar.h"

namespace floe::data {

namespace {

constexpr std::array<std::string_view, 4> kMarks{kImageMark, kEndOfChunkMark, "<eos>", "<PAD>"};

}  // namespace

MarksOnly::MarksOnly() {
  eos_ = kMarks[2];
  pad_ = kMarks[3];
}

void MarksOnly::encode(std::string_view text, std::vector<std::int32_t>& ids, bool) const {
  require<DataError>(is_utf8(text), "the text is not UTF-8");
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1))
    for (std::size_t id = 0; id < kMarks.size(); ++id)
      if (text.substr(at).starts_with(kMarks[id])) ids.push_back(static_cast<std::int32_t>(id));
}

std::string MarksOnly::decode(std::span<const std::int32_t> ids, bool) const {
  std::string text;
  for (const std::int32_t id : ids) text += token_of(id);
  return text;
}

std::int32_t MarksOnly::id_of(std::string_view token) const {
  for (std::size_t id = 0; id < kMarks.size(); ++id)
    if (kMarks[id] == token) return static_cast<std::int32_t>(id);
  return -1;
}

std::string MarksOnly::token_of(std::int32_t id) const {
  require<DataError>(id >= 0 && id < size(), "there is no token ", id);
  return std::string(kMarks[static_cast<std::size_t>(id)]);
}

std::int64_t MarksOnly::size() const { return std::ssize(kMarks); }

std::int64_t MarksOnly::add_special_tokens(const std::vector<std::string>& tokens) {
  for (const auto& token : tokens)
    require(id_of(token) >= 0, "marks cannot be added to, such as '", token, "'");
  return size();
}

std::string MarksOnly::describe() const { return "no tokenizer: only marks"; }

token::FlamingoTokens MarksOnly::tokens() { return {0, 1, 3, 2, std::ssize(kMarks)}; }

SampleReader::SampleReader(NextShard next_shard, Rules rules, OnDamage on_damage, OnFile on_file)
    : next_shard_(std::move(next_shard)),
      on_damage_(std::move(on_damage)),
      on_file_(std::move(on_file)),
      grouper_(rules) {}

SampleReader::~SampleReader() = default;

std::optional<RawSample> SampleReader::next_of_shard() {
  try {
    TarEntry entry;
    while (tar_->next(entry)) {
      if (on_file_) on_file_(shard_, entry.name, entry.data.size());
      if (auto sample = grouper_.add(shard_, entry.name, std::move(entry.data))) return sample;
    }
  } catch (const DataError& error) {
    on_damage_(shard_, error.what());
  }
  tar_.reset();
  return grouper_.end_shard();
}

std::optional<RawSample> SampleReader::next() {
  while (!ended_) {
    if (tar_) {
      if (auto sample = next_of_shard()) return sample;
      continue;
    }
    auto shard = next_shard_();
    if (!shard) {
      ended_ = true;
      return grouper_.finish();
    }
    shard_ = std::move(*shard);
    try {
      tar_ = std::make_unique<TarReader>(shard_);
    } catch (const DataError& error) {
      on_damage_(shard_, error.what());
    }
  }
  return std::nullopt;
}

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
