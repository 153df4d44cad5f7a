#include "floe/config/codec.h"

#include "floe/core/bytes.h"
#include "floe/core/utf8.h"

namespace floe::config {

bool Codec<bool>::read(const Value& value, bool& out, const Place& place) {
  const bool* flag = value.as<bool>();
  if (!flag) return place.fail(value, "must be true or false, not ", value.shown());
  out = *flag;
  return true;
}

std::optional<std::int64_t> integer_of(const Value& value) {
  if (const auto* integer = value.as<std::int64_t>()) return *integer;
  const auto* number = value.as<double>();
  constexpr double kExact = 9007199254740992;  // 2^53: below it every integer is a double
  if (number && std::trunc(*number) == *number && std::abs(*number) <= kExact)
    return static_cast<std::int64_t>(*number);
  return std::nullopt;
}

bool Codec<double>::read(const Value& value, double& out, const Place& place) {
  const auto* integer = value.as<std::int64_t>();
  const auto* number = value.as<double>();
  if (!integer && !(number && std::isfinite(*number)))
    return place.fail(value, "must be a ", number ? "finite " : "", "number, not ", value.shown());
  out = integer ? static_cast<double>(*integer) : *number;
  return true;
}

bool Codec<std::string>::read(const Value& value, std::string& out, const Place& place) {
  if (value.as<bool>())
    return place.fail(value, "must be a string, not ", value.shown(), "; put it in quotes");
  if (value.is_null() || !value.is_scalar())
    return place.fail(value, "must be a string, not ", value.shown());
  out = value.scalar_text();
  if (!is_utf8(out))
    return place.fail(
        value, "is '", shown_bytes(out),
        "', which is not UTF-8; logs and checkpoints could not hold it, so use another "
        "name");
  return true;
}

bool Codec<ByteSize>::read(const Value& value, ByteSize& out, const Place& place) {
  if (const auto* text = value.as<std::string>()) {
    try {
      out.bytes = parse_bytes(*text);
      return true;
    } catch (const ConfigError&) {
      // Falls through to the message that names the place.
    }
  } else if (const auto integer = integer_of(value); integer && *integer >= 0) {
    out.bytes = *integer;
    return true;
  }
  return place.fail(value,
                    "must be a size, a number with a unit such as 40GiB, 512MiB or 5GB, not ",
                    value.shown());
}

Value Codec<ByteSize>::write(ByteSize size, Write) {
  const std::int64_t bytes = size.bytes;
  for (const auto& [unit, name] : {std::pair{kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}})
    if (bytes > 0 && bytes % unit == 0) return Value(str(bytes / unit, name));
  return Value(bytes);
}

bool fail_choice(const Value& value, const Place& place, const std::vector<std::string>& names) {
  const auto* text = value.as<std::string>();
  return place.fail(value, "must be one of ", join(names), ", not ", value.shown(),
                    text ? did_you_mean(*text, names) : "");
}

bool Codec<DType>::read(const Value& value, DType& out, const Place& place) {
  const auto* text = value.as<std::string>();
  const auto dtype = text ? dtype_from_name(*text) : std::nullopt;
  if (!dtype)
    return place.fail(value, "must be a dtype such as fp32, bf16 or fp16, not ", value.shown());
  out = *dtype;
  return true;
}

}  // namespace floe::config
