#include "floe/convert/document.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "floe/core/error.h"
#include "floe/data/python/base64.h"
#include "floe/data/python/str.h"
#include "floe/image/image.h"
#include "floe/io/file/file.h"

namespace floe::convert {
namespace {

using data::Json;
using data::JsonMember;
namespace fs = std::filesystem;

constexpr std::int64_t kMostPictureBytes = std::int64_t{1} << 30;

// Thrown for a line that is no document.
struct BadLine {
  const char* reason;
};

// Names come from the web: they must not lead out of the folder.
bool stays_inside(const fs::path& name) {
  return !name.empty() && name.is_relative() &&
         std::find(name.begin(), name.end(), "..") == name.end();
}

std::string read_picture(const std::string& path) {
  const File file(path);
  require<DataError>(file.size() <= kMostPictureBytes, "the file is too large");
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// The picture as base64 of a JPEG, or nothing, with the reason counted.
std::optional<std::string> convert_picture(const Json& entry, const std::string& folder,
                                           ConvertCounts& counts) {
  const Json* name = entry.find("image_name");
  if (!name) throw BadLine{"lines left out: an image without image_name"};
  const auto leave_out = [&](const std::string& reason) {
    ++counts["pictures left out: " + reason];
    return std::nullopt;
  };
  if (!name->is(Json::Kind::string)) return leave_out("its name is not text");
  const fs::path relative{std::string(name->text)};
  if (!stays_inside(relative)) return leave_out("its name leads out of the folder");
  const std::string path = folder + "/" + relative.string();
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return leave_out("not there");
  if (status.type() != fs::file_type::regular) return leave_out("not a file");
  try {
    thread_local image::Image picture;
    const std::string bytes = read_picture(path);
    image::decode(std::as_bytes(std::span(bytes)), picture);
    std::string text = data::encode_base64(image::encode_jpeg(picture));
    ++counts["pictures"];
    return text;
  } catch (const DataError& defect) {
    // Reasons of decoders are short and few; those of files name paths.
    const std::string reason = defect.what();
    return leave_out(reason.find('\'') == std::string::npos ? reason : "cannot be read");
  } catch (const Error&) {
    return leave_out("cannot be written as JPEG");
  }
}

void write_entry(const Json& entry, const std::optional<std::string>& base64, std::string& out) {
  constexpr std::string_view kKey = "image_base64";
  if (!base64) return write_python_json(entry, out);
  const bool replaces = entry.find(kKey) != nullptr;
  out += '{';
  for (const JsonMember& member : entry.members) {
    write_python_string(member.key, out);
    out += ": ";
    if (member.key == kKey)
      out += '"' + *base64 + '"';
    else
      write_python_json(member.value, out);
    out += ", ";
  }
  if (replaces)
    out.resize(out.size() - 2);
  else
    out += "\"image_base64\": \"" + *base64 + '"';
  out += '}';
}

std::string convert_json(const Json& root, const std::string& folder, ConvertCounts& counts) {
  const Json* entries = root.find("image_info");
  if (!root.is(Json::Kind::object) || !entries || !entries->is(Json::Kind::array))
    throw BadLine{"lines left out: no image_info"};
  const auto is_object = [](const Json& entry) { return entry.is(Json::Kind::object); };
  if (!std::all_of(entries->items.begin(), entries->items.end(), is_object))
    throw BadLine{"lines left out: an image without image_name"};

  std::string out;
  std::string_view separator = "{";
  for (const JsonMember& member : root.members) {
    out += separator;
    separator = ", ";
    write_python_string(member.key, out);
    out += ": ";
    if (&member.value != entries) {
      write_python_json(member.value, out);
      continue;
    }
    std::string_view before_entry = "[";
    for (const Json& entry : entries->items) {
      out += before_entry;
      before_entry = ", ";
      write_entry(entry, convert_picture(entry, folder, counts), out);
    }
    out += entries->items.empty() ? "[]" : "]";
  }
  return out + "}";
}

}  // namespace

void add_counts(const ConvertCounts& more, ConvertCounts& counts) {
  for (const auto& [what, count] : more) counts[what] += count;
}

ConvertedDocument convert_document(std::span<const std::byte> line, const std::string& folder) {
  ConvertedDocument done;
  const auto bad = [&](const std::string& reason) { return ConvertedDocument{"", {{reason, 1}}}; };
  try {
    const data::PythonJson document(line);
    done.json = convert_json(document.root(), folder, done.counts);
    ++done.counts["documents"];
    return done;
  } catch (const BadLine& line_error) {
    return bad(line_error.reason);
  } catch (const DataError&) {
    return bad("lines left out: not JSON");
  }
}

namespace {

void write_unit(unsigned unit, std::string& out) {
  out += "\\u";
  for (const int shift : {12, 8, 4, 0}) out += "0123456789abcdef"[unit >> shift & 15];
}

// The shortest digits that read back as the same number, without an exponent for 1e-4 <= x < 1e16.
void write_real(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  std::array<char, 32> text;
  const auto scientific =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::scientific);
  const std::string_view shortest(text.data(),
                                  static_cast<std::size_t>(scientific.ptr - text.data()));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  // from_chars takes no '+'.
  const char* digits = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, shortest.data() + shortest.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += shortest;  // at least two digits of exponent, in Python as here
    return;
  }
  std::string mantissa(shortest.substr(0, e));
  if (mantissa.starts_with('-')) {
    out += '-';
    mantissa.erase(0, 1);
  }
  std::erase(mantissa, '.');
  if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + mantissa;
    return;
  }
  const auto before_point = static_cast<std::size_t>(exponent) + 1;
  if (mantissa.size() <= before_point)
    out += mantissa + std::string(before_point - mantissa.size(), '0') + ".0";
  else
    out += mantissa.substr(0, before_point) + "." + mantissa.substr(before_point);
}

}  // namespace

void write_python_string(std::string_view text, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const auto [point, bytes] = data::code_point_at(text, at);
    at += bytes;
    switch (point) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (point >= 0x20 && point < 0x7f) {
          out += static_cast<char>(point);
        } else if (point < 0x10000) {
          write_unit(point, out);
        } else {
          write_unit(0xd800 + ((point - 0x10000) >> 10), out);
          write_unit(0xdc00 + ((point - 0x10000) & 0x3ff), out);
        }
    }
  }
  out += '"';
}

void write_python_json(const Json& value, std::string& out) {
  switch (value.kind) {
    case Json::Kind::null: out += "null"; return;
    case Json::Kind::boolean: out += value.truth ? "true" : "false"; return;
    case Json::Kind::integer: out += value.text == "-0" ? "0" : value.text; return;
    case Json::Kind::real: write_real(value.number, out); return;
    case Json::Kind::string: write_python_string(value.text, out); return;
    case Json::Kind::array: {
      std::string_view separator = "[";
      for (const Json& item : value.items) {
        out += separator;
        write_python_json(item, out);
        separator = ", ";
      }
      out += value.items.empty() ? "[]" : "]";
      return;
    }
    case Json::Kind::object: {
      std::string_view separator = "{";
      for (const JsonMember& member : value.members) {
        out += separator;
        write_python_string(member.key, out);
        out += ": ";
        write_python_json(member.value, out);
        separator = ", ";
      }
      out += value.members.empty() ? "{}" : "}";
      return;
    }
  }
}

}  // namespace floe::convert
