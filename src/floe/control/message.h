// What travels between a rank and rank 0: frames of CBOR, each behind its length.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace floe::control {

using Message = nlohmann::json;

std::string frame_of(const Message& message);

// Puts frames together from what a connection gives.
class FrameReader {
 public:
  // Frames that say they are longer end in an error: nobody whom floe knows sends them.
  explicit FrameReader(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  void set_most(std::size_t most_bytes) { most_bytes_ = most_bytes; }
  void feed(std::string_view bytes) { bytes_.append(bytes); }
  // The next message, when it has arrived whole. Throws DataError for bytes that are none.
  std::optional<Message> next();

 private:
  std::size_t most_bytes_;
  std::string bytes_;
};

}  // namespace floe::control
