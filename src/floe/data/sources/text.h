// Plain text: documents as lines of JSON ({"text": "…"}) or as .txt files in tars.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "floe/data/sample.h"
#include "floe/data/stream/stream_reader.h"
#include "floe/io/tar/tar_format.h"
#include "floe/token/tokenizer.h"

namespace floe::data {

// A document without a character.
inline constexpr std::string_view kEmptyText = "empty_text";

// A file whose name has `.jsonl` or `.ndjson` in it, compressed or not: every line that is not blank
// is a member `<line>.jsonl`. Anything else is a tar. Pipes as in TarReader.
std::unique_ptr<MemberSource> open_text(const std::string& where);

// Tokens as the tokenizer gives them for the text alone (BOS included, if it adds one), then EOS. Every
// token has a label.
class TextMaker : public SampleMaker {
 public:
  // Keeps a reference. Throws ConfigError when the tokenizer has no EOS token.
  explicit TextMaker(const token::Tokenizer& tokenizer);
  Outcome make(const RawSample& raw) const override;

 private:
  const token::Tokenizer& tokenizer_;
  std::int32_t eos_;
};

// The lines of a file of JSON lines as members of a shard.

class TextLines : public MemberSource {
 public:
  // Throws DataError when there is no such file.
  explicit TextLines(const std::string& where);
  // Blank lines do not count. Throws DataError that names the line when the file is damaged or a
  // line is absurdly long; every line before that has been given.
  bool next(TarEntry& entry) override;

 private:
  bool next_line(std::vector<std::byte>& line);

  std::string where_;
  std::unique_ptr<TarStream> stream_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is unread in buffer_
  std::int64_t number_ = 0;          // of the line before
  bool ended_ = false;
};

}  // namespace floe::data
