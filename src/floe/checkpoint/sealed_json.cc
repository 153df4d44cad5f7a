#include "floe/checkpoint/sealed_json.h"

#include <array>
#include <cstdio>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/atomic_file.h"
#include "floe/io/crc32.h"
#include "floe/io/file.h"
#include "floe/io/json_text.h"

namespace floe::checkpoint {
namespace {

constexpr std::int64_t kMostBytes = 1 << 30;

// A copy whose strings and keys went through `change`.
template <class F>
nlohmann::json with_strings(const nlohmann::json& content, const F& change) {
  if (content.is_string()) return change(content.get_ref<const std::string&>());
  if (!content.is_structured()) return content;
  nlohmann::json copy = content.is_array() ? nlohmann::json::array() : nlohmann::json::object();
  for (const auto& [key, item] : content.items())
    if (content.is_array())
      copy.push_back(with_strings(item, change));
    else
      copy[change(key)] = with_strings(item, change);
  return copy;
}

std::string last_line(const std::string& content) {
  return str("{\"crc32\":\"", hex(crc32(content)), "\"}\n");
}

}  // namespace

std::string hex(std::uint32_t crc) {
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}

nlohmann::json as_text(const nlohmann::json& content) {
  return with_strings(content, [](const std::string& bytes) { return bytes_to_text(bytes); });
}
nlohmann::json as_bytes(const nlohmann::json& text) {
  return with_strings(text, [](const std::string& chars) { return text_to_bytes(chars); });
}

std::string seal(const nlohmann::json& content) {
  const std::string line = as_text(content).dump() + "\n";
  return line + last_line(line);
}

void write_sealed(const std::string& path, const nlohmann::json& content) {
  write_file_atomically(path, seal(content));
}

nlohmann::json unseal(const std::string& bytes, const std::string& path) {
  const std::size_t end = bytes.find('\n');
  require<CheckpointError>(end != std::string::npos, "'", path, "' is cut off or damaged");
  const std::string line = bytes.substr(0, end + 1);
  require<CheckpointError>(bytes.substr(end + 1) == last_line(line), "'", path,
                           "' is damaged: its checksum does not fit its content");
  try {
    return as_bytes(parse_json(line, path));
  } catch (const DataError& e) {
    throw CheckpointError(e.what());
  }
}

nlohmann::json read_sealed(const std::string& path) {
  std::string bytes;
  try {
    bytes = read_text(path, kMostBytes);
  } catch (const DataError& e) {
    throw CheckpointError(e.what());
  }
  return unseal(bytes, path);
}

}  // namespace floe::checkpoint
