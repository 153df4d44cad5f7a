// Chunks of a tensor in a distributed checkpoint: rectangles of its elements, stored apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace floe {

// Where an item lies: [offset, offset + length) of a file is one archive of torch.save.
struct DcpPlace {
  std::size_t file = 0;  // of DcpMetadata::files
  std::int64_t offset = 0, length = 0;
};

// The elements offsets[d] <= i_d < offsets[d] + sizes[d], row-major.
struct DcpChunk {
  std::vector<std::int64_t> offsets, sizes;
  DcpPlace place;

  std::int64_t numel() const;
};

// Sorts the chunks by their offsets, drops empty ones and replicas (the same rectangle again), and
// checks that the rest is a tiling of the tensor. The result is what is wrong, as a part of a sentence
// ("has a chunk ..."); empty when nothing is. `shape` must have fewer than 2^63 elements.
std::string tidy_chunks(const std::vector<std::int64_t>& shape, std::vector<DcpChunk>& chunks);

// Note [Elements of a chunk]
// A chunk's row-major order and its tensor's agree, so those of its elements that lie in a row-major
// range of the tensor follow each other in the chunk: one range of its bytes. Both are made of runs,
// elements that are neighbours in the tensor as well.
//
// How many of the chunk's elements come before `element` of the tensor.
std::int64_t elements_before(const DcpChunk& chunk, const std::vector<std::int64_t>& shape,
                             std::int64_t element);

// The other way: which element of the tensor is element number `element` of the chunk.
std::int64_t place_in_tensor(const DcpChunk& chunk, const std::vector<std::int64_t>& shape,
                             std::int64_t element);

// Calls `visit` for the runs of elements [first, first + count) of the chunk, in order: where a run
// begins in the chunk and in the tensor, and its length.
void for_each_run(const DcpChunk& chunk, const std::vector<std::int64_t>& shape, std::int64_t first,
                  std::int64_t count,
                  const std::function<void(std::int64_t in_chunk, std::int64_t in_tensor,
                                           std::int64_t length)>& visit);

}  // namespace floe
