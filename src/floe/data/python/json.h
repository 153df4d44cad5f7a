// JSON as Python's json.loads(bytes) accepts it, which differs from the standard (and from strict
// parsers) in what real documents contain: NaN and Infinity are numbers, of equal keys the last one
// counts, integers have up to 4300 digits, `\ud800` alone is a character, UTF-16, UTF-32 and a
// byte order mark are understood. Whether a document is used hangs on these, so floe reads them the
// same way.
//
//   const PythonJson document(bytes);
//   if (const Json* sentences = document.root().find("text_list")) …
//
// Strings without escapes are not copied: pictures as base64 make up most of a document.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace floe::data {

struct JsonMember;

// A value; valid as long as its document and the bytes that it was made from.
struct Json {
  enum class Kind { null, boolean, integer, real, string, array, object };

  Kind kind = Kind::null;
  bool truth = false;     // boolean
  double number = 0;      // integer and real; an integer beyond the doubles is infinite
  std::string_view text;  // string: UTF-8, lone surrogates as three bytes each; integer: its digits
  std::span<const Json> items;          // array
  std::span<const JsonMember> members;  // object: keys are unique, in order of first appearance

  bool is(Kind other) const { return kind == other; }
  // The value of a key of an object; null when there is none or this is no object.
  const Json* find(std::string_view key) const;
};

struct JsonMember {
  std::string_view key;
  Json value;
};

class PythonJson {
 public:
  // Throws DataError with place and defect where Python raises. `bytes` must outlive the document.
  explicit PythonJson(std::span<const std::byte> bytes);
  PythonJson(const PythonJson&) = delete;
  PythonJson& operator=(const PythonJson&) = delete;

  const Json& root() const { return root_; }

 private:
  std::string decoded_;  // the text, when the bytes are not UTF-8
  std::pmr::monotonic_buffer_resource memory_;
  Json root_;
};

}  // namespace floe::data
