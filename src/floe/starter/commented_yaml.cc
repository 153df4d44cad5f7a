#include "floe/starter/commented_yaml.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "floe/core/error.h"
#include "floe/schema/yaml_text.h"

namespace floe::starter {
namespace {

constexpr std::size_t kColumns = 100;

std::string dotted_path(const std::vector<std::string>& path, std::size_t count) {
  return join(
      std::vector<std::string>(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(count)),
      ".");
}

// Characters, as far as UTF-8 tells: bytes that go on with one do not count.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string comment(const std::string& text, std::size_t indent) {
  const std::string begin = std::string(indent, ' ') + "#";
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // What a comment quotes may have any character; none may end it.
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
    if (line.empty() || line.starts_with(' ')) {
      out += begin + (line.empty() ? "" : " " + line) + "\n";
      continue;
    }
    std::istringstream words(line);
    std::string row = begin;
    for (std::string word; words >> word;) {
      if (row != begin && width_of(row) + 1 + width_of(word) > kColumns) {
        out += row + "\n";
        row = begin;
      }
      row += " " + word;
    }
    out += row + "\n";
  }
  return out;
}

std::string commented_yaml(const std::string& head, const std::vector<Entry>& entries,
                           const std::vector<config::FieldInfo>& fields) {
  std::map<std::string, std::string> meanings;
  for (const config::KeyInfo& key : config::all_keys(fields)) meanings[key.key] = key.field->help;
  // Blocks themselves are not what can be set; their meaning is found on the way.
  const auto add_blocks = [&](const auto& self, const std::string& prefix,
                              const std::vector<config::FieldInfo>& below) -> void {
    for (const config::FieldInfo& field : below) {
      const std::string key = prefix.empty() ? field.key : prefix + "." + field.key;
      meanings.emplace(key, field.help);
      self(self, key, field.children);
    }
  };
  add_blocks(add_blocks, "", fields);
  const auto meaning_of = [&](const std::string& key) {
    const auto found = meanings.find(key);
    require(found != meanings.end(), "there is no key '", key, "' in the configuration");
    return found->second + (found->second.ends_with("…") ? "" : ".");
  };

  std::string out = comment(head, 0);
  std::vector<std::string> open;  // the blocks around the entry before
  for (const Entry& entry : entries) {
    const std::vector<std::string> path = config::split_path(entry.key);
    const std::size_t depth = path.size() - 1;
    std::size_t same = 0;
    while (same < depth && same < open.size() && open[same] == path[same]) ++same;
    if (same < depth || open.size() > depth) out += "\n";
    for (std::size_t i = same; i < depth; ++i) {
      const std::string spaces(2 * i, ' ');
      out += comment(meaning_of(dotted_path(path, i + 1)), 2 * i);
      out += spaces + path[i] + ":\n";
    }
    open.assign(path.begin(), path.end() - 1);
    out += comment(meaning_of(entry.key), 2 * depth);
    if (!entry.why.empty()) out += comment("Here: " + entry.why, 2 * depth);
    out += std::string(2 * depth, ' ') + (entry.suggested ? "# " : "") + path.back() + ": " +
           config::write_inline_yaml(entry.value) + "\n";
  }
  return out;
}

config::Value tree_of(const std::vector<Entry>& entries) {
  config::Value root{config::Map()};
  for (const Entry& entry : entries) {
    if (entry.suggested) continue;
    config::Value* at = &root;
    for (const std::string& key : config::split_path(entry.key)) {
      if (!at->as<config::Map>()) *at = config::Value(config::Map());
      at = &(*at->as<config::Map>())[key];
    }
    *at = entry.value;
  }
  return root;
}

}  // namespace floe::starter
