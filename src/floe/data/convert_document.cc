#include "floe/data/convert_document.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "floe/core/error.h"
#include "floe/data/base64.h"
#include "floe/data/convert_json.h"
#include "floe/image/encode.h"
#include "floe/image/image.h"
#include "floe/io/file.h"

namespace floe::data {
namespace {

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
    std::string text = encode_base64(image::encode_jpeg(picture));
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
    const PythonJson document(line);
    done.json = convert_json(document.root(), folder, done.counts);
    ++done.counts["documents"];
    return done;
  } catch (const BadLine& line_error) {
    return bad(line_error.reason);
  } catch (const DataError&) {
    return bad("lines left out: not JSON");
  }
}

}  // namespace floe::data
