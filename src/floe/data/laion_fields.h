// Which fields of a LAION sample WebDataset decodes before anything else happens. Any failure drops
// the sample, also in fields that nobody uses.
#pragma once

#include "floe/data/sample.h"

namespace floe::data {

// Whether WebDataset's image decoder takes fields of this suffix (by its last part: `seg.jpg` is one).
bool is_image_suffix(std::string_view suffix);

// Decodes every field except `picture`, which the caller decodes itself. Throws Drop.
// - names that begin with `__` are left alone; `.gz` is unpacked first;
// - pictures by content, texts as strict UTF-8, JSON, and integers (`cls`, `id`, `index`, …);
// - arrays and pickles (`npy`, `pth`, …) are left alone: floe does not run or load them.
void check_fields(const RawSample& raw, const Field* picture);

}  // namespace floe::data
