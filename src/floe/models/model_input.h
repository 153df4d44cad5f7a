// A batch in the form in which the models compute: on the device, with everything that only depends
// on the batch worked out once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/nn/attention.h"
#include "floe/nn/rotary.h"
#include "floe/nn/segments.h"

namespace floe::models {

class LanguageModel;
class MediaCache;
class MediaPlan;

// Which token predicts a label.
enum class LabelRule {
  next_token,  // the one before it: the label of token i is what token i - 1 is to say
  same_token,  // itself: labels of masked tokens
};

// How the losses of tokens become the loss of a batch: the sum over sources s of
// weight[s] / divisor[s] · (sum of the losses of its labelled tokens).
struct LossRule {
  std::vector<double> weight;   // by source; missing ones are 1
  std::vector<double> divisor;  // by source; missing ones are the number of labelled tokens here
  double z_loss = 0;
};

// What all layers need of a batch beside the hidden states. Shared: recomputed layers read it
// again.
struct BatchContext {
  std::shared_ptr<const nn::Segments> segments;
  at::Tensor positions;  // [N], of each token in its sequence
  nn::AttentionRule rule;
  std::vector<at::Tensor> masks;  // of each bucket
  nn::RotaryAngles rotary;
  nn::KvCache* cache = nullptr;            // generation only
  std::shared_ptr<const MediaPlan> media;  // with gates only
};
using ContextPtr = std::shared_ptr<const BatchContext>;

struct ModelInput {
  at::Tensor ids;     // [N]
  at::Tensor images;  // [M, 3, H, W], with a zero image behind them where one is looked at
  ContextPtr context;

  at::Tensor predictors;      // [L] tokens that predict a label, see LabelRule
  at::Tensor targets;         // [L] that label
  at::Tensor target_weights;  // [L] fp32, see LossRule
  at::Tensor target_sources;  // [L] which source each is from; one more than there are: of none
  std::vector<std::int64_t> labels_of_source;
  double z_loss = 0;

  // Of a training pass. `with_places`: also what only attention with padding reads, which is made
  // if need be; else as far as it has been made.
  nn::BatchParts parts(bool with_places = false) const;
};

struct InputOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // in which the model computes
  LossRule loss;
  std::int64_t num_sources = 0;  // at least so many are reported
  bool rounded = false;          // to shapes that repeat, see Note [Rounded batches]
  // Generation: where earlier tokens are kept and what layers make of images, media times that do
  // not follow from the ids, and images that sequences share (see MediaPlan::Rule).
  nn::KvCache* cache = nullptr;
  MediaCache* media_cache = nullptr;
  at::Tensor media_times;   // [N]
  at::Tensor first_images;  // [S]
};

// `batch` lies on the CPU. Looks at ids and offsets only; images and ids are copied without waiting
// where they are pinned.
std::shared_ptr<const ModelInput> prepare(const LanguageModel& model, const PackedBatch& batch,
                                          const InputOptions& options);

// How many tokens of each source have a label that the model predicts: what the default divisor of
// LossRule is.
std::vector<std::int64_t> count_targets(const LanguageModel& model, const PackedBatch& batch,
                                        std::int64_t num_sources);

// Rows [B, T] with a mask [B, T] of what is real, as a batch. With `keep_padding`, padded places
// stay in their sequences (nothing looks at them), so that every place of the rows has an output;
// without, they are left out. vision [B, slots, 3, H, W] or undefined; labels may be undefined.
PackedBatch from_rows(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& labels,
                      const at::Tensor& vision, bool keep_padding, std::int64_t source = 0);

// Two batches, one after the other.
PackedBatch concatenate(const PackedBatch& a, const PackedBatch& b);

// Note [Rounded batches]
// A batch rounded up to a bucket, so that shapes repeat although natural data never does. Behind it
// come sequences of padding: tokens without labels and zero images that only they look at. Nothing
// of the batch looks at them and no loss depends on them, so losses and gradients stay what they
// are, up to the rounding of sums that are cut differently. Tokens, images and labelled tokens
// become as many as their bucket (bucket_size) has; the number of padding sequences depends on the
// bucket alone.
//
// `media_token` -1: a model without images. The result counts the padding's images in
// `image_offsets` and `image_slots`, but `images` are those of `batch`: the zeros behind them are
// made on the device.
PackedBatch rounded(const PackedBatch& batch, std::int64_t media_token);

}  // namespace floe::models
