#include <charconv>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/bpe/bpe.h"
#include "floe/token/json/json_fields.h"
#include "floe/token/json/parts.h"
#include "floe/token/regex/regex.h"

namespace floe::token {
namespace {

using Tokens = std::vector<std::string>;

class ByteLevelDecoder : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    std::string all, bytes;
    for (const std::string& token : tokens) all += chars_to_bytes(token, bytes) ? bytes : token;
    tokens.assign(1, replace_invalid_utf8(all));
  }
  std::string describe() const override { return "bytes"; }
};

// `<0xE2>` and its like become bytes; a row of them that is not UTF-8 becomes as many U+FFFD.
class ByteFallbackDecoder : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    Tokens result;
    std::string bytes;
    const auto close = [&] {
      if (bytes.empty()) return;
      if (find_invalid_utf8(bytes) == std::string::npos)
        result.push_back(bytes);
      else
        result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_of(token); byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      close();
      result.push_back(std::move(token));
    }
    close();
    tokens = std::move(result);
  }
  std::string describe() const override { return "<0x..> as bytes"; }

 private:
  static int byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const char* first = token.data() + 3;
    if (*first == '+') ++first;  // Rust's from_str_radix takes a sign
    int value = -1;
    const auto [end, error] = std::from_chars(first, token.data() + 5, value, 16);
    return error == std::errc() && end == token.data() + 5 && *first != '-' ? value : -1;
  }
};

class FuseDecoder : public Decoder {
 public:
  void apply(Tokens& tokens) const override { tokens.assign(1, join(tokens, "")); }
  std::string describe() const override { return "joined"; }
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(std::unique_ptr<Pattern> pattern, std::string shown, std::string content)
      : pattern_(std::move(pattern)), shown_(std::move(shown)), content_(std::move(content)) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      Pattern::Match match;
      std::string result;
      std::size_t done = 0;
      while (pattern_->find(token, done, match)) {
        result.append(token, done, match.begin - done).append(content_);
        done = match.end;
      }
      token = result.append(token, done);
    }
  }
  std::string describe() const override {
    return str("replace ", shown_, " by ", quoted(content_));
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string shown_, content_;
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(char32_t c, std::size_t left, std::size_t right)
      : character_(to_utf8(c)), left_(left), right_(right) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::size_t i = 0; i < left_ && rest.starts_with(character_); ++i)
        rest.remove_prefix(character_.size());
      for (std::size_t i = 0; i < right_ && rest.ends_with(character_); ++i)
        rest.remove_suffix(character_.size());
      token = std::string(rest);
    }
  }
  std::string describe() const override {
    return str("up to ", left_, " ", quoted(character_), " less in front and ", right_, " behind");
  }

 private:
  std::string character_;
  std::size_t left_, right_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(char32_t mark, bool has_prefix)
      : mark_(to_utf8(mark)), has_prefix_(has_prefix) {}
  void apply(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view space = i == 0 && has_prefix_ ? "" : " ";
      std::string result;
      std::size_t done = 0;
      for (std::size_t at; (at = tokens[i].find(mark_, done)) != std::string::npos;) {
        result.append(tokens[i], done, at - done).append(space);
        done = at + mark_.size();
      }
      tokens[i] = result.append(tokens[i], done);
    }
  }
  std::string describe() const override { return mark_ + " as spaces"; }

 private:
  std::string mark_;
  bool has_prefix_;
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> parts)
      : parts_(std::move(parts)) {}
  void apply(Tokens& tokens) const override {
    for (const auto& part : parts_) part->apply(tokens);
  }
  std::string describe() const override {
    std::vector<std::string> words;
    for (const auto& part : parts_) words.push_back(part->describe());
    return words.empty() ? "joined" : join(words, ", then ");
  }

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

}  // namespace

std::unique_ptr<Decoder> read_decoder(const nlohmann::json& decoder, const std::string& where) {
  if (decoder.is_null()) return nullptr;
  JsonFields fields(decoder, where);
  const std::string type = fields.type();
  std::unique_ptr<Decoder> result;
  if (type == "ByteLevel") {
    for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(name);
    result = std::make_unique<ByteLevelDecoder>();
  } else if (type == "ByteFallback") {
    result = std::make_unique<ByteFallbackDecoder>();
  } else if (type == "Fuse") {
    result = std::make_unique<FuseDecoder>();
  } else if (type == "Replace") {
    const auto& pattern = fields.object("pattern");
    auto compiled = read_pattern(pattern, where + " (Replace)");
    result = std::make_unique<ReplaceDecoder>(std::move(compiled), shown(*pattern.begin()),
                                              fields.text("content"));
  } else if (type == "Strip") {
    const char32_t character = fields.character("content");
    const std::size_t left = fields.count("start");
    result = std::make_unique<StripDecoder>(character, left, fields.count("stop"));
  } else if (type == "Metaspace") {
    const char32_t mark = fields.character("replacement");
    const std::string scheme = fields.text_if_any("prepend_scheme").value_or("always");
    const bool has_prefix = fields.flag("add_prefix_space", true) && scheme != "never";
    fields.ignore("split");
    fields.ignore("str_rep");
    result = std::make_unique<MetaspaceDecoder>(mark, has_prefix);
  } else if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> parts;
    for (const auto& part : fields.list("decoders"))
      if (auto one = read_decoder(part, where)) parts.push_back(std::move(one));
    result = std::make_unique<DecoderSequence>(std::move(parts));
  } else {
    throw ConfigError(str(where, ": floe does not support the decoder ", quoted(type),
                          "; it knows ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and "
                          "Sequence"));
  }
  fields.finish();
  return result;
}

}  // namespace floe::token
