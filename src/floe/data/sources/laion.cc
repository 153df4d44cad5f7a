#include "floe/data/sources/laion.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <span>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/data/python/json.h"
#include "floe/data/python/str.h"
#include "floe/data/sample.h"
#include "floe/data/sources/sample_text.h"
#include "floe/data/sources/source_description.h"
#include "floe/image/image.h"

namespace floe::data {
namespace {

constexpr std::size_t kMostUnpackedBytes = std::size_t{1} << 30;

// The members of a gzip file, one after the other.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> file) {
    require<DataError>(inflateInit2(&stream_, 15 + 16) == Z_OK, "gzip: cannot begin");
    // zlib does not write through next_in; its type only predates const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(file.data()));
    stream_.avail_in = static_cast<uInt>(file.size());
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Appends one member.
  void member(Bytes& out) {
    inflateReset(&stream_);
    std::array<std::byte, 65536> block;
    for (int result = Z_OK; result != Z_STREAM_END;) {
      stream_.next_out = reinterpret_cast<Bytef*>(block.data());
      stream_.avail_out = static_cast<uInt>(block.size());
      result = inflate(&stream_, Z_NO_FLUSH);
      require<DataError>(result == Z_OK || result == Z_STREAM_END,
                         result == Z_BUF_ERROR ? "gzip: cut off" : "gzip: damaged");
      out.insert(out.end(), block.begin(), block.end() - stream_.avail_out);
      require<DataError>(out.size() <= kMostUnpackedBytes, "gzip: more than ", kMostUnpackedBytes,
                         " bytes");
    }
  }

  // Zeros between and behind members do not count.
  void skip_zeros() {
    for (; stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) ++stream_.next_in;
  }
  bool done() const { return stream_.avail_in == 0; }

 private:
  z_stream stream_{};
};

// The content of a gzip file of one or more members, as Python's gzip reads it. Throws DataError
// when it is cut off, damaged, followed by other bytes than zeros, or too large.
Bytes gunzip(std::span<const std::byte> file) {
  Bytes out;
  require<DataError>(file.size() <= kMostUnpackedBytes, "gzip: more than ", kMostUnpackedBytes,
                     " bytes");
  if (file.empty()) return out;
  Inflater inflater(file);
  while (!inflater.done()) {
    inflater.member(out);
    inflater.skip_zeros();
  }
  return out;
}

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

// Decodes every field except `picture`, which the caller decodes itself, as WebDataset does before
// anything else happens: a failure drops the sample, also in fields that nobody uses.
// - names that begin with `__` are left alone; `.gz` is unpacked first;
// - pictures by content, texts as strict UTF-8, JSON, and integers (`cls`, `id`, `index`, …);
// - arrays and pickles (`npy`, `pth`, …) are left alone: floe does not run or load them.
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

// In order of preference.
std::vector<const Field*> pictures_of(const RawSample& raw) {
  std::vector<const Field*> pictures;
  for (const std::string_view suffix : {"jpg", "png", "jpeg"})
    if (const Field* field = raw.find(suffix)) pictures.push_back(field);
  return pictures;
}

// The first of them (which must be readable), or with corrected rules the first readable one; its
// pixels go to `image`.
const Field* decode_picture(const std::vector<const Field*>& pictures, Rules rules,
                            image::Image& image) {
  std::string defect;
  for (const Field* field : pictures) {
    try {
      image::decode(field->bytes, image);
      return field;
    } catch (const DataError& error) {
      if (defect.empty()) defect = error.what();
      if (rules == Rules::openflamingo) break;
    }
  }
  throw Drop{reason::kBadImage, defect};
}

}  // namespace

bool is_image_suffix(std::string_view suffix) { return is_one_of(last_part(suffix), kImages); }

LaionMaker::LaionMaker(const token::Tokenizer& tokenizer, const token::FlamingoTokens& tokens,
                       const image::Transform& transform, LaionSettings settings)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      transform_(transform),
      settings_(settings),
      eos_(eos_text(tokenizer)) {
  require<ConfigError>(settings.max_tokens >= 1, "data.laion.max_tokens must be at least 1, not ",
                       settings.max_tokens);
}

Sample LaionMaker::sample_of(const RawSample& raw) const {
  const Field* caption = raw.find("txt");
  const auto pictures = pictures_of(raw);
  keep_if(caption && !pictures.empty(), reason::kNoCaptionOrImage,
          caption ? "no jpg, png or jpeg" : "no txt");
  const bool corrected = settings_.rules == Rules::corrected;
  keep_if(is_utf8(as_text(caption->bytes)), reason::kBadText, "'txt' is not UTF-8");
  if (!corrected) check_fields(raw, pictures.front());
  ThreadImage pixels;
  const Field* picture = decode_picture(pictures, settings_.rules, pixels.image());

  Sample sample;
  sample.images.emplace_back(picture->suffix);
  sample.sizes.push_back({pixels.image().width, pixels.image().height});
  sample.crops.resize(transform_.crop_bytes());
  or_drop(reason::kBadImage, [&] {
    transform_.crop(pixels.image(), sample.crops.data());
    return true;
  });
  const std::string_view text = as_text(caption->bytes);
  const std::string words(strip(corrected ? without_marks(text) : std::string(text)));
  sample.ids =
      cut_ids(tokenizer_, str(kImageMark, words, kEndOfChunkMark, eos_), settings_.max_tokens);
  sample.labels.resize(sample.ids.size());
  laion_labels(sample.ids, tokens_, sample.labels);
  return sample;
}

Outcome LaionMaker::make(const RawSample& raw) const {
  return sample_or_dropped(raw, [&] { return sample_of(raw); });
}

void describe(config::Schema<LaionConfig>& s) { describe_shards(s); }

std::unique_ptr<DataSource> laion_source() {
  using C = LaionConfig;
  return make_source<C>(
      {.info = {.id = "laion",
                .help = "Image-text pairs",
                .files_key = "shards",
                .per_epoch_key = "num_samples",
                .has_images = true},
       .files = &C::shards,
       .weight = &C::weight,
       .per_batch = &C::batch_size,
       .per_epoch = &C::num_samples,
       .rules = [](const C& c, const MakerContext& context) {
         const LaionSettings settings{context.rules, context.cut_after(c.max_tokens)};
         const bool corrected = context.rules == Rules::corrected;
         return SourceRules{
             .maker = std::make_shared<LaionMaker>(context.tokenizer, context.tokens,
                                                   context.transform, settings),
             .flips = corrected ? BatchRule::Flips::of_sample : BatchRule::Flips::of_batch,
             .image_slots = 1,
             .max_tokens = c.max_tokens};
       }});
}

}  // namespace floe::data
