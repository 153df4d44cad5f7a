#include "floe/data/text_maker.h"

#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/data/text_lines.h"
#include "floe/io/json_text.h"

namespace floe::data {
namespace {

// Why a document is not used.
struct Unused {
  std::string_view reason;
  std::string detail;
};

std::string_view as_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string text_of_line(const Bytes& line) {
  nlohmann::json document;
  try {
    document = parse_json(std::string(as_text(line)), "line");
  } catch (const DataError& error) {
    throw Unused{reason::kBadJson, error.what()};
  }
  const auto text = document.is_object() ? document.find("text") : document.end();
  if (!document.is_object() || text == document.end() || !text->is_string())
    throw Unused{reason::kBadDocument, "the line is no object with a string 'text'"};
  return text->get<std::string>();
}

std::string text_of(const RawSample& raw) {
  if (const Field* line = raw.find("jsonl")) return text_of_line(line->bytes);
  if (const Field* text = raw.find("txt")) return std::string(as_text(text->bytes));
  throw Unused{reason::kNoDocument, "it has no .txt"};
}

}  // namespace

std::unique_ptr<MemberSource> open_text(const std::string& where) {
  if (where.find(".jsonl") == std::string::npos && where.find(".ndjson") == std::string::npos)
    return open_tar(where);
  return std::make_unique<TextLines>(where);
}

TextMaker::TextMaker(const token::Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  require<ConfigError>(tokenizer.eos_id().has_value(),
                       "data.text: the tokenizer has no EOS token to end documents with; name one "
                       "in its tokenizer_config.json");
  eos_ = *tokenizer.eos_id();
}

Outcome TextMaker::make(const RawSample& raw) const {
  try {
    Sample sample;
    sample.shard = raw.shard;
    sample.key = raw.key;
    const std::string text = text_of(raw);
    if (text.empty()) throw Unused{kEmptyText, ""};
    try {
      tokenizer_.encode(text, sample.ids);
    } catch (const DataError& error) {
      throw Unused{reason::kBadText, error.what()};
    }
    sample.ids.push_back(eos_);
    sample.labels = sample.ids;
    return sample;
  } catch (const Unused& unused) {
    return Dropped{raw.shard, raw.key, std::string(unused.reason), unused.detail};
  }
}

}  // namespace floe::data
