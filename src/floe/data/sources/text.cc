#include "floe/data/sources/text.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/json_text.h"

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

namespace {

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::int64_t kMostLineBytes = 256 * kMiB;

bool is_blank(const std::vector<std::byte>& line) {
  return std::all_of(line.begin(), line.end(), [](std::byte byte) {
    const char c = static_cast<char>(byte);
    return c == ' ' || c == '\t' || c == '\r';
  });
}

}  // namespace

TextLines::TextLines(const std::string& where)
    : where_(where), stream_(open_tar_stream(where)), buffer_(kBufferBytes) {}

bool TextLines::next(TarEntry& entry) {
  do {
    if (!next_line(entry.data)) return false;
  } while (is_blank(entry.data));
  entry.name = str(number_, ".jsonl");
  return true;
}

bool TextLines::next_line(std::vector<std::byte>& line) {
  line.clear();
  if (ended_) return false;
  ++number_;
  try {
    for (;;) {
      const std::byte* first = buffer_.data() + begin_;
      const void* newline = std::memchr(first, '\n', end_ - begin_);
      const std::byte* last =
          newline ? static_cast<const std::byte*>(newline) : buffer_.data() + end_;
      require<DataError>(static_cast<std::int64_t>(line.size()) + (last - first) <= kMostLineBytes,
                         "it is longer than the ", format_bytes(kMostLineBytes),
                         " that a line may have");
      line.insert(line.end(), first, last);
      begin_ += static_cast<std::size_t>(last - first);
      if (newline) {
        ++begin_;
        return true;
      }
      begin_ = 0;
      end_ = stream_->read(buffer_);
      if (end_ > 0) continue;
      ended_ = true;
      stream_->finish();
      return !line.empty();
    }
  } catch (const DataError& error) {
    ended_ = true;
    throw DataError(str("file '", where_, "', line ", number_, ": ", error.what()));
  }
}

}  // namespace floe::data
