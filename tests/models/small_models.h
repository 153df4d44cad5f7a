// Small models whose sizes suit the kernels of the GPU, and batches for them.
#pragma once

#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/registry.h"

namespace floe::test {

constexpr std::int64_t kSmallVocabulary = 200, kMedia = 198, kEndOfChunk = 199;

inline const nlohmann::json kMpt{{"model_type", "mpt"},
                                 {"vocab_size", kSmallVocabulary},
                                 {"d_model", 128},
                                 {"n_layers", 3},
                                 {"n_heads", 4}};
inline const nlohmann::json kNeox{{"model_type", "gpt_neox"}, {"vocab_size", kSmallVocabulary},
                                  {"hidden_size", 128},       {"num_hidden_layers", 3},
                                  {"num_attention_heads", 4}, {"intermediate_size", 256},
                                  {"rotary_pct", 0.5},        {"use_parallel_residual", false}};
inline const nlohmann::json kLlama{{"model_type", "llama"},    {"vocab_size", kSmallVocabulary},
                                   {"hidden_size", 128},       {"num_hidden_layers", 2},
                                   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                                   {"intermediate_size", 256}};

// `dim_head` of resampler and gates: 64 is OpenFlamingo's and that of floe's own attention.
inline models::FlamingoSpec small_flamingo(const nlohmann::json& lm, std::int64_t dim_head = 32) {
  models::FlamingoSpec spec;
  spec.lm = models::decoder_spec({lm, "test"});
  spec.vision = {
      .image_size = 28, .patch = 14, .width = 64, .layers = 2, .heads = 2, .mlp_dim = 128};
  spec.perceiver = {.depth = 2, .dim_head = dim_head, .heads = 2, .num_latents = 8};
  spec.cross_attention = {.dim_head = dim_head, .heads = 2};
  spec.media_token = kMedia;
  spec.endofchunk_token = kEndOfChunk;
  return spec;
}

struct Page {
  std::int64_t length, images, slots;
  std::set<std::int64_t> markers;
};

// `shift` gives other tokens.
inline PackedBatch batch_of_pages(const std::vector<Page>& pages, std::int64_t shift = 0) {
  at::manual_seed(static_cast<std::uint64_t>(shift + 1));
  std::vector<std::int64_t> ids, positions, labels, offsets{0}, image_offsets{0}, slots;
  for (const Page& page : pages) {
    for (std::int64_t i = 0; i < page.length; ++i) {
      const bool marker = page.markers.contains(i);
      const auto at = static_cast<std::int64_t>(ids.size());
      ids.push_back(marker ? kMedia : (7 * i + 11 * at + 29 * shift) % 197);
      labels.push_back(marker ? kNoLabel : ids.back());
      positions.push_back(i);
    }
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
    image_offsets.push_back(image_offsets.back() + page.images);
    slots.push_back(page.slots);
  }
  const auto longs = [](const std::vector<std::int64_t>& v) { return at::tensor(v, at::kLong); };
  PackedBatch batch;
  batch.ids = longs(ids);
  batch.positions = longs(positions);
  batch.labels = longs(labels);
  batch.sequence_offsets = longs(offsets);
  batch.image_offsets = longs(image_offsets);
  batch.image_slots = longs(slots);
  batch.source = at::zeros({static_cast<std::int64_t>(pages.size())}, at::kLong);
  batch.images = at::randn({image_offsets.back(), 3, 28, 28});
  batch.sample_keys.assign(pages.size(), "page");
  batch.validate();
  return batch;
}

}  // namespace floe::test
