// Steps of the loader as tensors. The pictures stay where the loader's threads wrote them.
//
//   if (on_cuda) context.allocate = pinned_images();
//   Loader loader(config, context);
//   Step step = loader.next();
//   PackedBatch all = pack(step);           // every source in one batch
//   PackedBatch pairs = pack(step, 0);      // one of them; shares the pictures of the step
#pragma once

#include <cstddef>

#include "floe/batch/packed_batch.h"
#include "floe/data/loader/loader_batch.h"

namespace floe::data {

// For LoaderContext::allocate: page-locked memory, from which a GPU copies without waiting; needs CUDA.
// Such memory goes back to torch's allocator, which knows what is still being copied.
AllocateImages pinned_images();

// One batch of all sources of a step, in their order; `source` has the numbers of SourceId. Tensors
// of pictures keep the step's memory alive. Without pictures `images` has the shape [0, 3, 0, 0].
PackedBatch pack(const Step& step);
// One batch of the step alone.
PackedBatch pack(const Step& step, std::size_t batch);

}  // namespace floe::data
