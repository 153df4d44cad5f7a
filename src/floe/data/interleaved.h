// An MMC4 document on its way to a sample: text with marks, and the pictures they stand for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "floe/data/mmc4.h"
#include "floe/data/python_json.h"
#include "floe/image/image.h"

namespace floe::data {

struct Picture {
  ImageName name;
  Bytes file;
  std::optional<image::Image>
      decoded;  // filled by corrected rules, which must look before matching
};

struct Interleaved {
  std::string text;                // without the end that every text gets
  std::vector<Picture> pictures;   // all that the rules want to be readable
  std::vector<std::size_t> shown;  // those of them that a model sees, in the order of the tensor
};

// A page: sentences and pictures matched by similarity. Throws Drop.
Interleaved read_page(const Json& document, const Mmc4Settings& settings);

// A document that ChatGPT wrote: text that mentions its pictures as `_!_IMAGE1_!_`. Throws Drop.
Interleaved read_chat(const Json& document, const Mmc4Settings& settings);

// The content of a base64 string; drops the document when it is none.
Bytes decode_picture_file(const Json& base64);

// Decodes the pictures and leaves out those that cannot be read.
void leave_out_unreadable(std::vector<Picture>& pictures);

// Takes the first `<|endofchunk|>` out (nothing ends before the first picture), and spaces around
// marks.
std::string tidy_marks(std::string_view text);

}  // namespace floe::data
