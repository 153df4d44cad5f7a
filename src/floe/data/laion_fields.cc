#include "floe/data/laion_fields.h"

#include <algorithm>
#include <array>
#include <span>

#include "floe/data/drop.h"
#include "floe/data/gunzip.h"
#include "floe/data/python_json.h"
#include "floe/data/unicode.h"
#include "floe/image/image.h"

namespace floe::data {
namespace {

// What WebDataset hands to Pillow.
constexpr auto kImages = std::to_array<std::string_view>(
    {"blp",  "bmp",  "dib",  "bufr", "cur", "pcx",  "dcx", "dds",  "ps",  "eps", "fit",
     "fits", "fli",  "flc",  "ftc",  "ftu", "gbr",  "gif", "grib", "h5",  "hdf", "png",
     "apng", "jp2",  "j2k",  "jpc",  "jpf", "jpx",  "j2c", "icns", "ico", "im",  "iim",
     "tif",  "tiff", "jfif", "jpe",  "jpg", "jpeg", "mpg", "mpeg", "msp", "pcd", "pxr",
     "pbm",  "pgm",  "ppm",  "pnm",  "psd", "bw",   "rgb", "rgba", "sgi", "ras", "tga",
     "icb",  "vda",  "vst",  "webp", "wmf", "emf",  "xbm", "xpm"});
constexpr auto kTexts = std::to_array<std::string_view>({"txt", "text", "transcript"});
constexpr auto kIntegers = std::to_array<std::string_view>({"cls", "cls2", "index", "inx", "id"});
constexpr auto kJsons = std::to_array<std::string_view>({"json", "jsn"});

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view last_part(std::string_view suffix) {
  const std::size_t dot = suffix.rfind('.');
  return dot == std::string_view::npos ? suffix : suffix.substr(dot + 1);
}

void check_field(std::string_view suffix, std::span<const std::byte> bytes) {
  const std::string_view kind = last_part(suffix);
  if (is_image_suffix(suffix)) {
    or_drop(reason::kBadImage, [&] { return image::decode(bytes); });
  } else if (is_one_of(kind, kTexts)) {
    keep_if(is_utf8(as_text(bytes)), reason::kBadText, "'", suffix, "' is not UTF-8");
  } else if (is_one_of(kind, kJsons)) {
    or_drop(reason::kBadJson, [&] {
      PythonJson parsed(bytes);
      return true;
    });
  } else if (is_one_of(kind, kIntegers)) {
    keep_if(is_python_int(as_text(bytes)), reason::kBadField, "'", suffix, "' is no integer");
  }
}

}  // namespace

bool is_image_suffix(std::string_view suffix) { return is_one_of(last_part(suffix), kImages); }

void check_fields(const RawSample& raw, const Field* picture) {
  for (const Field& field : raw.fields) {
    if (&field == picture || field.suffix.starts_with("__")) continue;
    std::string_view suffix = field.suffix;
    // WebDataset looks at the suffix with a dot in front, so `gz` alone is one as well.
    if (suffix == "gz" || suffix.ends_with(".gz")) {
      suffix.remove_suffix(std::min<std::size_t>(suffix.size(), 3));
      const Bytes unpacked = or_drop(reason::kBadField, [&] { return gunzip(field.bytes); });
      check_field(suffix, unpacked);
    } else {
      check_field(suffix, field.bytes);
    }
  }
}

}  // namespace floe::data
