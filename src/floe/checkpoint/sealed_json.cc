#include "floe/checkpoint/sealed_json.h"

#include <array>
#include <cstdio>

#include "floe/core/error.h"
#include "floe/io/atomic_file.h"
#include "floe/io/crc32.h"
#include "floe/io/file.h"
#include "floe/io/json_text.h"

namespace floe::checkpoint {
namespace {

constexpr std::int64_t kMostBytes = 1 << 30;

std::string last_line(const std::string& content) {
  return str("{\"crc32\":\"", hex(crc32(content)), "\"}\n");
}

}  // namespace

std::string hex(std::uint32_t crc) {
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}

std::string seal(const nlohmann::json& content) {
  const std::string line = content.dump() + "\n";
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
    return parse_json(line, path);
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
