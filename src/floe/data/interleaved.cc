#include "floe/data/interleaved.h"

#include <algorithm>

#include "floe/data/base64.h"
#include "floe/data/drop.h"
#include "floe/data/sample_text.h"
#include "floe/data/unicode.h"

namespace floe::data {

Bytes decode_picture_file(const Json& base64) {
  keep_if(base64.is(Json::Kind::string), reason::kBadBase64, "a picture is no base64 text");
  return or_drop(reason::kBadBase64, [&] { return decode_base64(base64.text); });
}

void leave_out_unreadable(std::vector<Picture>& pictures) {
  std::erase_if(pictures, [](Picture& picture) {
    try {
      picture.decoded = image::decode(picture.file);
      return false;
    } catch (const DataError&) {
      return true;
    }
  });
}

std::string tidy_marks(std::string_view text) {
  std::string tidy = replace(text, kEndOfChunkMark, "", 1);
  tidy = replace(tidy, str(" ", kEndOfChunkMark), kEndOfChunkMark);
  tidy = replace(tidy, str(kImageMark, " "), kImageMark);
  return replace(tidy, str(" ", kImageMark), kImageMark);
}

}  // namespace floe::data
