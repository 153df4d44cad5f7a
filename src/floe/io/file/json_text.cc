#include "floe/io/file/json_text.h"

#include <utility>
#include <vector>

#include "floe/core/error.h"

namespace floe {
namespace {

using nlohmann::json;

constexpr std::size_t kMostDepth = 64;

std::string shortened(std::string text) {
  constexpr std::size_t kMost = 120;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole UTF-8
  return text.substr(0, end) + "...";
}

// Builds the value, and refuses keys that come twice and deep nesting. (json::parse with a callback
// takes time that grows with the square of an object's members.)
class StrictReader : public json::json_sax_t {
 public:
  explicit StrictReader(const std::string& file) : file_(file) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool key(string_t& name) override {
    check_depth();
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    require<DataError>(is_new, "'", file_, "': the JSON has the key ", quoted(name), " twice");
    member_ = &member.value();
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    throw DataError(str("'", file_, "': not valid JSON: ", shortened(error.what())));
  }

 private:
  void check_depth() const {
    require<DataError>(open_.size() <= kMostDepth, "'", file_, "': the JSON is nested deeper than ",
                       kMostDepth, " levels");
  }
  json& put(json value) {
    check_depth();
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *member_ = std::move(value);
    return open_.back()->emplace_back(std::move(value));
  }
  bool add(json value) {
    put(std::move(value));
    return true;
  }
  bool open(json value) {
    open_.push_back(&put(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& file_;
  json root_;
  std::vector<json*> open_;  // objects and lists around the place of reading
  json* member_ = nullptr;   // of the innermost object, whose key was read
};

}  // namespace

std::string quoted(const std::string& name) { return shown(json(name)); }

std::string shown(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

json parse_json(const std::string& text, const std::string& file) {
  StrictReader reader(file);
  json::sax_parse(text, &reader);
  return reader.take();
}

}  // namespace floe
