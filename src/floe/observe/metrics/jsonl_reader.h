// The lines of a metrics.jsonl, one at a time, whatever state the file is in; and how numbers and
// texts stand in JSON.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace floe::observe {

struct JsonLine {
  std::int64_t number = 0;  // from 1
  std::string text;         // without its end; cut when it is too long to be a record
  bool ended = false;       // by a newline: a line without one was torn off
  std::string problem;      // why this is no record, in words; empty when it is one
  std::int64_t step = 0;
  nlohmann::ordered_json values;  // the whole object
};

class JsonlReader {
 public:
  // Throws DataError when the file cannot be opened.
  explicit JsonlReader(const std::string& path);
  // False at the end of the file.
  bool next(JsonLine& line);

 private:
  std::ifstream file_;
  std::int64_t number_ = 0;
};

// The shortest decimal that reads back as the same double. What is not finite becomes what Python's
// json writes and reads: NaN, Infinity, -Infinity. That is no JSON; metrics.jsonl avoids it.
std::string number_text(double value);
// In quotes; bytes that are not UTF-8 become U+FFFD.
std::string quoted_text(const std::string& text);

}  // namespace floe::observe
