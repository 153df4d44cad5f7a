// For test_safetensors_reference.py:
//   safetensors_tool list PATH      a JSON line per tensor: name, dtype, shape, FNV-1a of its bytes
//   safetensors_tool copy PATH OUT  everything in PATH, written anew by SafetensorsWriter
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"

namespace floe {
namespace {

std::vector<std::byte> bytes_of(const TensorSource& source, const TensorInfo& info) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
  source.read(info, 0, info.numel(), bytes);
  return bytes;
}

std::uint64_t fnv1a(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

void list(const TensorSource& source) {
  for (const std::string& name : source.names()) {
    const TensorInfo& info = source.get(name);
    std::puts(nlohmann::json{{"name", name},
                             {"dtype", safetensors_name(info.dtype)},
                             {"shape", info.shape},
                             {"hash", fnv1a(bytes_of(source, info))}}
                  .dump()
                  .c_str());
  }
}

void copy(const TensorSource& source, const std::string& out) {
  Metadata metadata;
  if (const auto* file = dynamic_cast<const SafetensorsFile*>(&source)) metadata = file->metadata();
  SafetensorsWriter writer(out, metadata);
  for (const std::string& name : source.names())
    writer.declare(name, source.get(name).dtype, source.get(name).shape);
  for (const std::string& name : source.names())
    writer.write(name, bytes_of(source, source.get(name)));
  writer.finish();
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 2 && words[0] == "list") {
      floe::list(*floe::open_tensors(words[1]));
    } else if (words.size() == 3 && words[0] == "copy") {
      floe::copy(*floe::open_tensors(words[1]), words[2]);
    } else {
      throw floe::ConfigError("usage: safetensors_tool list PATH | copy PATH OUT");
    }
    return 0;
  } catch (const floe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
