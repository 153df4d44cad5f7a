#include "floe/schema/yaml_text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>
#include <utility>

namespace floe::config {
namespace {

std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Without quotes only where no reader could take it for anything else.
std::string string_text(const std::string& text) {
  const auto is_safe = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' ||
           c == '-';
  };
  const bool plain =
      !text.empty() &&
      (std::isalnum(static_cast<unsigned char>(text[0])) || text[0] == '_' || text[0] == '/') &&
      std::all_of(text.begin(), text.end(), is_safe) && Value::plain(text).as<std::string>();
  return plain ? text : in_quotes(text);
}

class Writer {
 public:
  explicit Writer(Comments comments) : comments_(comments) {}

  void write(const Map& map, int indent) {
    for (const auto& [key, value] : map) {
      const std::string begin =
          std::string(static_cast<std::size_t>(indent), ' ') + string_text(key) + ":";
      const auto* block = value.as<Map>();
      const auto* list = value.as<List>();
      if (block && !block->empty()) {
        out_ += begin + "\n";
        write(*block, indent + 2);
      } else if (list && !std::all_of(list->begin(), list->end(),
                                      [](const Value& v) { return v.is_scalar(); })) {
        out_ += begin + "\n";
        for (const Value& item : *list)
          line(std::string(static_cast<std::size_t>(indent) + 2, ' ') + "- " +
                   write_inline_yaml(item),
               item);
      } else {
        line(begin + " " + write_inline_yaml(value), value);
      }
    }
  }

  void line(std::string text, const Value& value) {
    if (comments_ == Comments::origins) {
      if (text.size() < 40) text.resize(40, ' ');
      std::string origin = value.origin.text();
      std::replace_if(
          origin.begin(), origin.end(), [](unsigned char c) { return std::iscntrl(c); }, ' ');
      text += "  # " + origin;
    }
    out_ += text + "\n";
  }

  std::string take() { return std::move(out_); }

 private:
  Comments comments_;
  std::string out_;
};

}  // namespace

std::string write_inline_yaml(const Value& value) {
  if (value.is_null()) return "null";
  if (const auto* text = value.as<std::string>()) return string_text(*text);
  std::string out;
  if (const auto* list = value.as<List>()) {
    for (const Value& item : *list) out += (out.empty() ? "" : ", ") + write_inline_yaml(item);
    return "[" + out + "]";
  }
  if (const auto* map = value.as<Map>()) {
    for (const auto& [key, item] : *map)
      out += (out.empty() ? "" : ", ") + string_text(key) + ": " + write_inline_yaml(item);
    return "{" + out + "}";
  }
  return value.scalar_text();
}

std::string write_yaml(const Value& value, Comments comments) {
  Writer writer(comments);
  const Map* map = value.as<Map>();
  if (map && !map->empty())
    writer.write(*map, 0);
  else
    writer.line(write_inline_yaml(value), value);
  return writer.take();
}

}  // namespace floe::config
