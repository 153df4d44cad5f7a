// The way of the data: the files of a shard -> RawSample -> Sample -> Batch -> PackedBatch.
//
//   files -> RawSample     stream/stream_reader.h   neighbours with one key, shuffled, undecoded
//   RawSample -> Sample    SampleMaker below        decoded, cut and tokenised; any thread
//   Sample -> Batch        stream/stream_batches.h  in order, with what chance decides;
//                          loader/batch.h           pictures normalised into one buffer
//   Batch -> PackedBatch   packing/packing.h        tensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/label.h"

// Why samples are dropped, as `floe inspect` and metrics name it.
namespace floe::data::reason {

// LAION: no txt, or no jpg, png or jpeg.
inline constexpr std::string_view kNoCaptionOrImage = "no_caption_or_image";
// MMC4: no json.
inline constexpr std::string_view kNoDocument = "no_document";
// A picture that cannot be read, or is cut off.
inline constexpr std::string_view kBadImage = "bad_image";
// Not UTF-8, or with lone surrogates.
inline constexpr std::string_view kBadText = "bad_text";
// Not JSON.
inline constexpr std::string_view kBadJson = "bad_json";
// Other metadata of a LAION sample.
inline constexpr std::string_view kBadField = "bad_field";
// JSON without the right shape.
inline constexpr std::string_view kBadDocument = "bad_document";
inline constexpr std::string_view kBadBase64 = "bad_base64";
// A document without a character.
inline constexpr std::string_view kEmptyText = "empty_text";
// Similarities that are missing, ragged, or no numbers.
inline constexpr std::string_view kBadMatrix = "bad_matrix";
// A match beyond the text, or a sentence that is no text.
inline constexpr std::string_view kBadSentence = "bad_sentence";
// No picture is large enough, or none is similar enough to a sentence.
inline constexpr std::string_view kNoImage = "no_image";
// Fewer `<image>` than the minimum, after the text was cut.
inline constexpr std::string_view kFewImages = "few_images";
// The only `<image>` is the last token, so nothing would be learned.
inline constexpr std::string_view kImageAtEnd = "image_at_end";
// A document with one `<image>` that the coin decided against.
inline constexpr std::string_view kSingleImageCoin = "single_image_coin";

}  // namespace floe::data::reason

namespace floe::data {

// Whose rules decide what a sample is. `openflamingo` follows the reference in every quirk.
// `corrected` mends them: laion.h, mmc4.h, grouping.h and shard_order.h say how.
enum class Rules { openflamingo, corrected };

using Bytes = std::vector<std::byte>;

struct Field {
  std::string suffix;  // "jpg", "seg.jpg": lower case
  Bytes bytes;
};

// Neighbouring files of a shard with the same key.
struct RawSample {
  std::string shard;  // where its first file lies
  std::string key;
  std::vector<Field> fields;  // in the order of the shard; suffixes are unique

  const Field* find(std::string_view suffix) const {
    for (const Field& field : fields)
      if (field.suffix == suffix) return &field;
    return nullptr;
  }
};

// Which picture of a raw sample: an index into MMC4's image_info, or a field (LAION) or map key.
using ImageName = std::variant<std::int64_t, std::string>;

struct ImageSize {
  int width = 0, height = 0;
};

struct Sample {
  std::string shard, key;
  std::vector<std::int32_t> ids;     // cut to the maximum, not padded
  std::vector<std::int32_t> labels;  // as many; kNoLabel where nothing is learned
  std::vector<ImageName> images;     // in the order of the tensor; real pictures only, no padding
  std::vector<ImageSize> sizes;      // of the pictures before they were cropped
  std::vector<std::uint8_t> crops;   // [images][size][size][3], RGB
  // Exactly one `<image>`: the caller draws a coin and drops the sample (reason::kSingleImageCoin)
  // when drops_single_image(draw). MMC4 only.
  bool single_image = false;

  std::size_t num_images() const { return images.size(); }
  // The crop of one picture.
  std::span<const std::uint8_t> crop(std::size_t image) const {
    const std::size_t each = crops.size() / images.size();
    return {crops.data() + image * each, each};
  }
};

// A sample that is not used. That is a value, not an error: callers count them by reason.
struct Dropped {
  std::string shard, key;
  std::string reason;  // short and stable: one of namespace reason
  std::string detail;  // a sentence for people
};

using Outcome = std::variant<Sample, Dropped>;

// `draw` is uniform in [0, 1), as Python's random.random().
constexpr bool drops_single_image(double draw) { return draw <= 0.5; }

// Raw samples to samples; every source has one.
//
// Note [Draws]
// make() draws nothing: it is a pure function of the raw sample, so any number of threads may make
// samples in any order. What chance decides (flips, the coin for documents with a single image)
// is left to the caller, who draws in the order of the stream or by a counter per sample; hence the
// number of threads cannot change what a model sees. The reference draws its coins in the order of
// its sample shuffle, which no seed fixes, so only their distribution can be followed.
class SampleMaker {
 public:
  virtual ~SampleMaker() = default;
  // Never throws because of what the sample contains. Thread-safe.
  virtual Outcome make(const RawSample& raw) const = 0;
};

// Inside makers: leaves the making of a sample. sample_or_dropped() turns it into a Dropped.
struct Drop {
  std::string_view reason;
  std::string detail;
};

template <class... Parts>
void keep_if(bool condition, std::string_view reason, const Parts&... detail) {
  if (!condition) throw Drop{reason, str(detail...)};
}

// What `work` gives; a DataError in it drops the sample for `reason`.
template <class Work>
auto or_drop(std::string_view reason, Work&& work) {
  try {
    return work();
  } catch (const DataError& error) {
    throw Drop{reason, error.what()};
  }
}

// What `work` gives, a Sample, with the names of `raw`; or why it has none.
template <class Work>
Outcome sample_or_dropped(const RawSample& raw, Work&& work) {
  try {
    Sample sample = work();
    sample.shard = raw.shard;
    sample.key = raw.key;
    return sample;
  } catch (const Drop& drop) {
    return Dropped{raw.shard, raw.key, std::string(drop.reason), drop.detail};
  }
}

}  // namespace floe::data
