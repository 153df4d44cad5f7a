// Why samples are dropped, as `floe inspect` and metrics name it.
#pragma once

#include <string_view>

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
