#include "floe/io/file/json_text.h"

#include <set>
#include <vector>

#include "floe/core/error.h"

namespace floe {
namespace {

using nlohmann::json;

constexpr int kMostDepth = 64;

std::string shortened(std::string text) {
  constexpr std::size_t kMost = 120;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole UTF-8
  return text.substr(0, end) + "...";
}

// Refuses keys that come twice and deep nesting. A pass of its own: json::parse with a callback takes
// time that grows with the square of an object's members.
class StrictReader : public json::json_sax_t {
 public:
  explicit StrictReader(const std::string& file) : file_(file) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return open();
  }
  bool key(string_t& name) override {
    value();
    require<DataError>(keys_.back().insert(name).second, "'", file_, "': the JSON has the key ",
                       quoted(name), " twice");
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return close();
  }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  bool value() const {
    require<DataError>(depth_ <= kMostDepth, "'", file_, "': the JSON is nested deeper than ",
                       kMostDepth, " levels");
    return true;
  }
  bool open() {
    value();
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& file_;
  int depth_ = 0;                            // objects and lists that are open
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

std::string quoted(const std::string& name) { return shown(json(name)); }

std::string shown(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

json parse_json(const std::string& text, const std::string& file) {
  StrictReader reader(file);
  json::sax_parse(text, &reader);  // what is not JSON at all is said below
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw DataError(str("'", file, "': not valid JSON: ", shortened(error.what())));
  }
}

}  // namespace floe
