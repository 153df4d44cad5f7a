#include "floe/control/message.h"

#include <nlohmann/json.hpp>

#include "floe/core/error.h"

namespace floe::control {
namespace {

constexpr std::size_t kLengthBytes = 4;

}  // namespace

std::string frame_of(const Message& message) {
  std::string frame(kLengthBytes, '\0');
  Message::to_cbor(message, nlohmann::detail::output_adapter<char>(frame));
  const std::size_t length = frame.size() - kLengthBytes;
  require(length < (std::size_t{1} << 32), "a message of ", length, " bytes is too long to send");
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    frame[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return frame;
}

std::optional<Message> FrameReader::next() {
  if (bytes_.size() < kLengthBytes) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length |= std::size_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
  require<DataError>(length <= most_bytes_, "a message claims to have ", length, " bytes");
  if (bytes_.size() < kLengthBytes + length) return std::nullopt;
  Message message =
      Message::from_cbor(bytes_.begin() + kLengthBytes,
                         bytes_.begin() + static_cast<std::ptrdiff_t>(kLengthBytes + length),
                         /*strict=*/true, /*allow_exceptions=*/false);
  require<DataError>(message.is_object(), "a message is none of floe's");
  bytes_.erase(0, kLengthBytes + length);
  return message;
}

}  // namespace floe::control
