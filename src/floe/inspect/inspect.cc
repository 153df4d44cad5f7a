#include "floe/inspect/inspect.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/utf8.h"
#include "floe/data/python/str.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/sample_text.h"
#include "floe/data/sources/text_files.h"
#include "floe/data/stream/stream_reader.h"
#include "floe/io/tar/tar.h"

namespace floe::inspect {
namespace {

constexpr std::array<std::string_view, 4> kMarks{data::kImageMark, data::kEndOfChunkMark, "<eos>",
                                                 "<PAD>"};

// The files of a shard, counted on their way: also those that belong to no sample.
class CountedFiles : public data::MemberSource {
 public:
  CountedFiles(std::unique_ptr<data::MemberSource> files, ShardTally& tally)
      : files_(std::move(files)), tally_(tally) {}
  bool next(TarEntry& entry) override {
    if (!files_->next(entry)) return false;
    ++tally_.files;
    tally_.bytes += static_cast<std::int64_t>(entry.data.size());
    return true;
  }

 private:
  std::unique_ptr<data::MemberSource> files_;
  ShardTally& tally_;
};

}  // namespace

MarksOnly::MarksOnly() {
  eos_ = kMarks[2];
  pad_ = kMarks[3];
}

token::FlamingoTokens MarksOnly::tokens() { return {0, 1, 3, 2, std::ssize(kMarks)}; }

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

// {"prompt": "…", "response": "…"}
bool is_instruction(const Field& field) {
  const auto json = nlohmann::json::parse(data::as_text(field.bytes), nullptr,
                                          /*allow_exceptions=*/false);
  return json.is_object() && json.contains("prompt") && json.contains("response");
}

const data::DataSource& guess_source(const RawSample& sample) {
  const bool pictures = std::any_of(sample.fields.begin(), sample.fields.end(),
                                    [](const Field& f) { return data::is_image_suffix(f.suffix); });
  const Field* line = sample.find("jsonl");
  const Field* object = line || pictures ? line : sample.find("json");
  if (object && is_instruction(*object)) return *data::find_source("instruct");
  if (line) return *data::find_source("text");
  const bool is_mmc4 = object && !sample.find("txt");
  return *data::find_source(is_mmc4 ? "mmc4" : "laion");
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
  if (options_.source)
    choose_rules();
  else
    rules_.open = data::open_text;  // tars as well
}

const data::DataSource& Inspection::source() const {
  require(options_.source, "nothing has been inspected yet");
  return *options_.source;
}

void Inspection::choose_rules() {
  if (!source().is_set(options_.data)) source().set(options_.data);
  rules_ = source().rules(options_.data, {*tokenizer_, tokens_, transform_, options_.data.rules});
}

void Inspection::run(const Visit& visit) {
  std::size_t num_opened = 0;
  data::ReaderOptions reading;
  reading.shards = std::make_shared<const std::vector<std::string>>(options_.shards);
  reading.rules = options_.data.rules;
  reading.open = [&, open = rules_.open](const std::string& where, const std::atomic<bool>* stop) {
    ShardTally& tally = tallies_[num_opened++];
    return std::make_unique<CountedFiles>(open(where, stop), tally);
  };
  data::ShardWalker walker(reading, data::every_nth_shard(0, 1, options_.shards.size()));
  for (std::int64_t seen = 0; !walker.ended() && (!options_.limit || seen < *options_.limit);) {
    const auto found = walker.next();
    for (const data::BadShard& bad : walker.take_bad_shards()) {
      tallies_[static_cast<std::size_t>(bad.shard)].damage = bad.what;
      log::warn("left behind: ", bad.what);
    }
    if (!found) continue;
    ++seen;
    const RawSample& raw = found->raw;
    if (!options_.source) {
      options_.source = &guess_source(raw);
      choose_rules();
    }
    const auto begins = std::find_if(tallies_.begin(), tallies_.end(),
                                     [&](const ShardTally& t) { return t.shard == raw.shard; });
    if (begins != tallies_.end()) ++begins->samples;
    visit(raw, rules_.maker->make(raw));
  }
}

}  // namespace floe::inspect
