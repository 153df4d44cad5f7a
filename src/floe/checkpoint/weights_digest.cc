#include "floe/checkpoint/checkpointer.h"
#include "floe/core/sha256.h"

namespace floe::checkpoint {
namespace {

constexpr std::int64_t kSampled = 16;  // elements at the beginning, in the middle and at the end

}  // namespace

std::string weights_digest(const TensorSource& weights) {
  Sha256 hash;
  const auto add = [&](const std::string& text) { hash.add(std::as_bytes(std::span(text))); };
  for (const std::string& name : weights.names()) {
    const TensorInfo& info = weights.get(name);
    add(str(name, "\n", name_of(info.dtype), "\n", join(info.shape), "\n"));
    const std::int64_t numel = info.numel(), count = std::min(kSampled, numel);
    for (const std::int64_t first : {std::int64_t{0}, (numel - count) / 2, numel - count}) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(info.dtype)));
      weights.read(info, first, count, bytes);
      hash.add(bytes);
    }
  }
  std::string text;
  for (const std::byte byte : hash.finish()) {
    text += "0123456789abcdef"[static_cast<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace floe::checkpoint
