// Batches rounded up to a bucket, so that shapes repeat although natural data never does.
//
// Note [Rounded batches]
// Behind a batch come sequences of padding: tokens without labels and zero images that only they look at.
// Nothing of the batch looks at them and no loss depends on them, so losses and gradients stay what they
// are, up to the rounding of sums that are cut differently. Tokens, images and labelled tokens become as many
// as their bucket (bucket_size) has; the number of padding sequences depends on the bucket alone.
#pragma once

#include "floe/batch/packed_batch.h"

namespace floe::models {

// `media_token` -1: a model without images. The result counts the padding's images in `image_offsets` and
// `image_slots`, but `images` are those of `batch`: the zeros behind them are made on the device.
PackedBatch rounded(const PackedBatch& batch, std::int64_t media_token);

}  // namespace floe::models
