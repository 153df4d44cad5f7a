#include "floe/migrate/page.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <sstream>

#include "floe/core/str.h"
#include "floe/core/utf8.h"
#include "floe/schema/yaml_text.h"

namespace floe::migrate {
namespace {

using config::Map;
using config::Value;

constexpr std::size_t kPageWidth = 100;
// Blocks in the order of the reference page, whatever order they were set in.
constexpr std::array kBlocks = {"run",      "dist",      "model",      "data", "train",
                                "strategy", "precision", "checkpoint", "log"};

// "# ..." in lines at this indent; a word that is too long has a line of its own.
std::string comment_lines(const std::string& text, std::size_t indent,
                          std::string_view mark = "# ") {
  const std::string begin = std::string(indent, ' ') + std::string(mark);
  std::istringstream words(one_line(text));
  std::string out, line = begin;
  for (std::string word; words >> word;) {
    if (line.size() > begin.size() && line.size() + 1 + word.size() > kPageWidth) {
      out += line + "\n";
      line = std::string(indent, ' ') + "#" + std::string(mark.size() - 1, ' ');
    } else if (line.size() > begin.size()) {
      line += ' ';
    }
    line += word;
  }
  return out + line + "\n";
}

void write_block(const Map& map, const std::string& path, std::size_t indent,
                 const std::map<std::string, std::string>& comments, std::string& out) {
  for (const auto& [key, value] : map) {
    const std::string full = path.empty() ? key : path + "." + key;
    if (const auto found = comments.find(full); found != comments.end())
      out += comment_lines(found->second, indent);
    Value line{Map()};
    const Map* block = value.as<Map>();
    if (block && !block->empty()) {
      out += std::string(indent, ' ') + key + ":\n";
      write_block(*block, full, indent + 2, comments, out);
    } else {
      (*line.as<Map>())[key] = value;
      out += std::string(indent, ' ') + config::write_yaml(line);
    }
  }
}

}  // namespace

std::string one_line(const std::string& text) {
  std::string out;
  const std::string clean = replace_invalid_utf8(text);
  for (const char* at = clean.data(); at < clean.data() + clean.size();) {
    const char32_t c = next_char(at);
    const bool breaks =
        c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff;
    append_utf8(out, breaks ? U'?' : c);
  }
  return out;
}

std::string shell_word(std::string_view word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("_./:=,+@%-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  const bool printable = is_utf8(word) && one_line(std::string(word)) == word;
  std::string out = printable ? "'" : "$'";
  for (const char c : word) {
    if (printable) {
      out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    } else if (c == '\'' || c == '\\') {
      out += {'\\', c};
    } else if (std::isprint(static_cast<unsigned char>(c))) {
      out += c;
    } else {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code;
    }
  }
  return out + "'";
}

Value text_value(std::string_view text, config::Origin origin) {
  std::string escaped(text);
  for (auto at = escaped.find("${"); at != std::string::npos; at = escaped.find("${", at + 3))
    escaped.insert(at, "$");
  return Value(std::move(escaped), std::move(origin));
}

void Page::set(std::string_view key, Value value, const std::string& comment) {
  Value* place = &tree_;
  for (const std::string& part : config::split_path(key)) {
    if (!place->as<Map>()) place->data = Map();
    place = &(*place->as<Map>())[part];
  }
  *place = std::move(value);
  if (!comment.empty()) add_comment(key, comment);
}

void Page::add_comment(std::string_view key, const std::string& sentence) {
  std::string& comment = comments_[std::string(key)];
  comment += comment.empty() ? sentence : " " + sentence;
}

std::string Page::command(const std::string& file) const {
  return command_ + others_ + shell_word(file);
}

std::string Page::text(const std::string& file) const {
  std::string out = "# " + title_ + "\n#\n";
  const auto command_lines = [&](const std::vector<std::pair<std::string, std::string>>& lines) {
    std::size_t widest = 0;
    for (const auto& [line, what] : lines) widest = std::max(widest, line.size());
    for (const auto& [line, what] : lines)
      out += str("#   ", line, std::string(widest - line.size(), ' '), "   # ", what, "\n");
  };
  command_lines({{str("floe plan ", others_, shell_word(file),
                      world_ ? str(" world=", *world_) : std::string()),
                  "what each rank will hold and move"},
                 {command(file), "the run"}});
  for (const std::string& note : notes_) out += "#\n" + comment_lines(note, 0);
  if (!preparations_.empty()) out += "#\n# Before the first run:\n";
  for (const std::string& line : preparations_) out += "#   " + one_line(line) + "\n";
  if (!warnings_.empty()) out += "#\n# Look at this first:\n";
  for (const std::string& warning : warnings_) out += comment_lines(warning, 0, "# - ");

  Map ordered;
  const Map& map = *tree_.as<Map>();
  for (const char* block : kBlocks)
    if (const Value* value = map.find(block)) ordered[block] = *value;
  for (const auto& [key, value] : map)
    if (!ordered.find(key)) ordered[key] = value;
  out += "\n";
  write_block(ordered, "", 0, comments_, out);
  if (!left_out_.empty()) out += "\n# Without a counterpart in floe:\n";
  for (const std::string& sentence : left_out_) out += comment_lines(sentence, 0, "# - ");
  return out;
}

}  // namespace floe::migrate
