#include "floe/data/marks_only.h"

#include <array>

#include "floe/core/error.h"
#include "floe/data/sample_text.h"
#include "floe/data/unicode.h"

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

}  // namespace floe::data
