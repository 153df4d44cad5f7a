#include <vector>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_fields.h"
#include "floe/token/json/parts.h"
#include "floe/token/regex/regex.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {
namespace {

class NormalFormNormalizer : public Normalizer {
 public:
  explicit NormalFormNormalizer(NormalForm form) : form_(form) {}
  void apply(Draft& draft) const override {
    if (normalize(draft.text(), form_, draft.next())) draft.replace();
  }
  std::string describe() const override { return name_of(form_); }

 private:
  NormalForm form_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(Draft& draft) const override {
    if (draft.text().empty()) return;
    draft.next().append(prefix_).append(draft.text());
    draft.replace();
  }
  std::string describe() const override { return "prepend " + quoted(prefix_); }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(std::unique_ptr<Pattern> pattern, std::string shown, std::string content)
      : pattern_(std::move(pattern)), shown_(std::move(shown)), content_(std::move(content)) {}

  void apply(Draft& draft) const override {
    const std::string_view text = draft.text();
    Pattern::Match match;
    if (!pattern_->find(text, 0, match)) return;
    // Content that stands for several characters belongs to the last of them.
    if (match.begin == 0 && (content_.empty() || match.end > std::size_t(utf8_length(text[0]))))
      draft.lose_start();
    std::string& result = draft.next();
    std::size_t done = 0;
    do {
      result.append(text, done, match.begin - done).append(content_);
      done = match.end;
    } while (pattern_->find(text, done, match));
    result.append(text, done);
    draft.replace();
  }
  std::string describe() const override {
    return str("replace ", shown_, " by ", quoted(content_));
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string shown_, content_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(Draft& draft) const override {
    const auto is_space = [](const char* at) {
      return (CharClasses::table().flags(next_char(at)) & kSpace) != 0;
    };
    const std::string_view text = draft.text();
    const char* begin = text.data();
    const char* end = begin + text.size();
    while (left_ && begin < end && is_space(begin)) begin += utf8_length(*begin);
    while (right_ && begin < end && is_space(previous_char(end))) end = previous_char(end);
    if (begin != text.data()) draft.lose_start();
    draft.narrow(static_cast<std::size_t>(begin - text.data()),
                 static_cast<std::size_t>(end - text.data()));
  }
  std::string describe() const override {
    return str("strip white space", left_ ? " on the left" : "", left_ && right_ ? " and" : "",
               right_ ? " on the right" : "");
  }

 private:
  bool left_, right_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void apply(Draft& draft) const override {
    std::string& result = draft.next();
    const std::string_view text = draft.text();
    for (const char* at = text.data(); at < text.data() + text.size();)
      append_lower(result, next_char(at));
    draft.replace();
  }
  std::string describe() const override { return "lower case"; }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void apply(Draft& draft) const override {
    for (const auto& part : parts_) part->apply(draft);
  }
  std::string describe() const override {
    std::vector<std::string> words;
    for (const auto& part : parts_) words.push_back(part->describe());
    return words.empty() ? "nothing" : join(words, ", then ");
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const nlohmann::json& normalizer,
                                            const std::string& where) {
  if (normalizer.is_null()) return nullptr;
  JsonFields fields(normalizer, where);
  const std::string type = fields.type();
  std::unique_ptr<Normalizer> result;
  if (const auto form = normal_form_named(type)) {
    result = std::make_unique<NormalFormNormalizer>(*form);
  } else if (type == "Prepend") {
    result = std::make_unique<PrependNormalizer>(fields.text("prepend"));
  } else if (type == "Replace") {
    const auto& pattern = fields.object("pattern");
    auto compiled = read_pattern(pattern, where + " (Replace)");
    result = std::make_unique<ReplaceNormalizer>(std::move(compiled), shown(*pattern.begin()),
                                                 fields.text("content"));
  } else if (type == "Strip") {
    const bool left = fields.flag("strip_left");
    result = std::make_unique<StripNormalizer>(left, fields.flag("strip_right"));
  } else if (type == "Lowercase") {
    result = std::make_unique<LowercaseNormalizer>();
  } else if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const auto& part : fields.list("normalizers"))
      if (auto one = read_normalizer(part, where)) parts.push_back(std::move(one));
    result = std::make_unique<NormalizerSequence>(std::move(parts));
  } else {
    throw ConfigError(str(where, ": floe does not support the normalizer ", quoted(type),
                          "; it knows NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase and "
                          "Sequence"));
  }
  fields.finish();
  return result;
}

}  // namespace floe::token
