// Batches of the loader as tensors. The pictures stay where the loader's threads wrote them.
//
//   if (on_cuda) context.allocate = packing::pinned_images();
//   data::Loader loader(config, context);
//   data::Batch batch = loader.next();
//   PackedBatch all = packing::pack(batch);       // every source in one
//   PackedBatch pairs = packing::pack(batch, 0);  // one of them; shares the pictures
#pragma once

#include <cstddef>

#include "floe/batch/packed_batch.h"
#include "floe/data/loader/batch.h"

namespace floe::packing {

// For LoaderContext::allocate: page-locked memory, from which a GPU copies without waiting; needs
// CUDA. Such memory goes back to torch's allocator, which knows what is still being copied.
data::AllocateImages pinned_images();

// All sources of a batch, in their order; `source` has their numbers (data/sources/source.h).
// Tensors of pictures keep the batch's memory alive. Without pictures `images` has the shape
// [0, 3, 0, 0].
PackedBatch pack(const data::Batch& batch);
// One source of it alone.
PackedBatch pack(const data::Batch& batch, std::size_t source);

}  // namespace floe::packing
