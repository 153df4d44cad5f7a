#include "floe/schema/codec.h"

#include <cmath>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/core/utf8.h"

namespace floe::config {
namespace {

std::string join_keys(const std::string& section, const std::string& key) {
  const bool glued = section.empty() || key.starts_with('[') || key.starts_with('.');
  return section + (glued ? "" : ".") + key;
}

void add_help(const std::string& section, const std::vector<FieldInfo>& fields, std::string& out) {
  for (const FieldInfo& field : fields) {
    const std::string key = join_keys(section, field.key);
    if (field.children.empty() || !field.default_text.empty()) {
      out += str("  ", key, field.required ? "" : ": " + field.default_text, "  (", field.type,
                 field.required ? ", required" : "", ")\n      ", field.help, "\n");
    }
    add_help(key, field.children, out);
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void add_tables(const std::string& section, const std::string& help,
                const std::vector<FieldInfo>& fields, std::string& out) {
  if (!section.empty()) out += str("## `", section, "`\n\n", help, ".\n\n");
  std::string rows;
  for (const FieldInfo& field : fields)
    if (field.children.empty() || !field.default_text.empty())
      rows += str("| `", escaped(field.key), "` | ", escaped(field.type), " | ",
                  field.required ? "required" : "`" + escaped(field.default_text) + "`", " | ",
                  escaped(field.help), " |\n");
  if (!rows.empty())
    out += "| key | type | default | meaning |\n| --- | --- | --- | --- |\n" + rows + "\n";
  for (const FieldInfo& field : fields)
    if (!field.children.empty())
      add_tables(join_keys(section, field.key), field.help, field.children, out);
}

void add_keys(const std::string& section, const std::vector<FieldInfo>& fields,
              std::vector<KeyInfo>& out) {
  for (const FieldInfo& field : fields) {
    const std::string key = join_keys(section, field.key);
    out.push_back({key, &field});
    add_keys(key, field.children, out);
  }
}

}  // namespace

std::vector<KeyInfo> all_keys(const std::vector<FieldInfo>& fields) {
  std::vector<KeyInfo> keys;
  add_keys("", fields, keys);
  return keys;
}

std::vector<FieldInfo> with_prefix(const std::string& prefix, std::vector<FieldInfo> fields) {
  for (FieldInfo& field : fields) field.key = join_keys(prefix, field.key);
  return fields;
}

std::string help_text(const std::vector<FieldInfo>& fields) {
  std::string out;
  add_help("", fields, out);
  return out;
}

std::string markdown_reference(const std::vector<FieldInfo>& fields) {
  std::string out;
  add_tables("", "", fields, out);
  return out;
}

void Problems::add(const Origin& origin, const std::string& sentence) {
  // Of what nobody wrote there is no place to look at.
  const std::string where = origin.source == Origin::of_default().source ? "" : origin.text();
  lines_.push_back(shown_bytes(where.empty() ? sentence : str(where, ": ", sentence)));
}

void Problems::throw_if_any() const {
  if (!lines_.empty()) throw ConfigError(join(lines_, "\n"));
}

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
