#include <charconv>

#include "floe/core/str.h"
#include "floe/io/json_text.h"
#include "floe/io/pickle_value.h"

namespace floe::pickle {
namespace {

// Stops adding once the text is long enough for a message.
class Printer {
 public:
  std::string print(const Value& value) {
    add(value);
    if (text_.size() <= kMost) return text_;
    std::size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80)
      --end;  // whole UTF-8
    return text_.substr(0, end) + "...";
  }

 private:
  static constexpr std::size_t kMost = 200;
  bool full() const { return text_.size() > kMost / 2; }

  void add(const Value& value) {
    switch (value.kind()) {
      case Kind::none: text_ += "None"; break;
      case Kind::boolean: text_ += value.boolean() ? "True" : "False"; break;
      case Kind::integer: text_ += std::to_string(value.integer()); break;
      case Kind::big_integer:
        text_ += "an integer of " + std::to_string(value.bytes().size()) + " bytes";
        break;
      case Kind::real: add_real(value.real()); break;
      case Kind::text: text_ += quoted(value.text()); break;
      case Kind::bytes: text_ += std::to_string(value.bytes().size()) + " bytes"; break;
      case Kind::list: add_items("[", value.items(), "]"); break;
      case Kind::tuple:
        add_items("(", value.items(), value.items().size() == 1 ? ",)" : ")");
        break;
      case Kind::set:
      case Kind::frozen_set: add_items("{", value.items(), "}"); break;
      case Kind::dict: add_entries(value.entries()); break;
      case Kind::persistent:
        text_ += "persistent ";
        add(value.persistent_id());
        break;
      case Kind::global: text_ += value.global().module + "." + value.global().name; break;
      case Kind::object:
        add(value.object().callable);
        add(value.object().args);
        break;
    }
  }

  void add_real(double real) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, real).ptr;
    text_.append(digits, end);
  }

  void add_items(const char* open, const Items& items, const char* close) {
    text_ += open;
    bool first = true;
    for (const Value& item : items) {
      if (!first) text_ += ", ";
      first = false;
      if (full()) {
        text_ += "...";
        break;
      }
      add(item);
    }
    text_ += close;
  }

  void add_entries(const Entries& entries) {
    text_ += "{";
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!first) text_ += ", ";
      first = false;
      if (full()) {
        text_ += "...";
        break;
      }
      add(key);
      text_ += ": ";
      add(value);
    }
    text_ += "}";
  }

  std::string text_;
};

}  // namespace

std::string shown(const Value& value) { return Printer().print(value); }

}  // namespace floe::pickle
