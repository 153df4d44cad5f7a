#include "floe/observe/metrics/jsonl_reader.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"

namespace floe::observe {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostLineBytes = 1 << 20;
constexpr int kMostDepth = 8;

std::string problem_of(JsonLine& line) {
  if (line.text.size() > kMostLineBytes) return str("longer than ", kMostLineBytes, " bytes");
  if (!line.ended) return "torn off: it has no newline at its end";
  bool deep = false;
  const auto shallow = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    deep |= depth > kMostDepth;
    return !deep;  // what is left out is not built up either
  };
  line.values = ordered_json::parse(line.text, shallow, /*allow_exceptions=*/false);
  if (deep) return str("nested deeper than ", kMostDepth, " levels");
  if (!line.values.is_object()) return "not a JSON object";
  const auto step = line.values.find("step");
  if (step == line.values.end() || !step->is_number_integer()) return "without an integer 'step'";
  line.step = step->get<std::int64_t>();
  return "";
}

// As std::getline, but keeps at most a little more than a record may have.
bool read_line(std::istream& file, JsonLine& line) {
  line.text.clear();
  line.ended = false;
  auto* buffer = file.rdbuf();
  int c = buffer->sbumpc();
  if (c == EOF) return false;
  for (; c != EOF && c != '\n'; c = buffer->sbumpc())
    if (line.text.size() <= kMostLineBytes) line.text.push_back(static_cast<char>(c));
  line.ended = c == '\n';
  return true;
}

}  // namespace

JsonlReader::JsonlReader(const std::string& path) : file_(path, std::ios::binary) {
  require<DataError>(file_.is_open(), "cannot open '", path, "'");
}

bool JsonlReader::next(JsonLine& line) {
  if (!read_line(file_, line)) return false;
  line.number = ++number_;
  line.step = 0;
  line.problem = problem_of(line);
  return true;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[32];
  const bool whole = std::trunc(value) == value && std::abs(value) < 1e15;  // 100000, not 1e+05
  const auto end = whole ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed)
                         : std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

std::string quoted_text(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace floe::observe
