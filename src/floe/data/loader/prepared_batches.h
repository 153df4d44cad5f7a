// Prepared batches as a source: a safetensors file with
//   step<i>.<source>.input_ids, .attention_mask, .labels   [B, T] integers
//   step<i>.<source>.images or .images_i8                  [B, 3, H, W] or [B, K, 3, H, W]
// for i from 0 on and the ids of sources; `images` are floats, `images_i8` are 64 times the value.
// Padding goes: tokens whose mask is 0, and pictures of zeros at the end of a row. An epoch is the
// file once, in order; `{rank}` in the path is filled in.
#pragma once

#include <string>

#include "floe/data/loader/loader_setup.h"

namespace floe::data {

// Whether any rank's file of that name is there.
bool has_prepared_batches(const std::string& path);
// Throws ConfigError, with the key, when several ranks would read the same file, or one has none.
// A rank that says who it is looks for its own file; rank 0, and whoever does not, for all.
void require_file_per_rank(const std::string& path, const std::string& key, std::int64_t num_ranks,
                           std::int64_t own_rank = 0);

LoaderParts make_prepared(const std::string& path, const LoaderSetup& setup,
                          const SavedRanks& saved);

}  // namespace floe::data
