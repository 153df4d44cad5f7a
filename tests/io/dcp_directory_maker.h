// Directories of torch.distributed.checkpoint, right or wrong, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "floe/io/dcp/dcp.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file.h"
#include "tests/io/scratch.h"

namespace floe::test {

using pickle::Value;
using Sizes = std::vector<std::int64_t>;

inline Value torch_size(const Sizes& sizes) {
  pickle::Items items(sizes.begin(), sizes.end());
  return pickle::reduce(pickle::global("torch", "Size"), {pickle::tuple(std::move(items))});
}

inline Value dcp_object(const char* name, pickle::Entries state,
                        const char* module = "torch.distributed.checkpoint.metadata") {
  return pickle::new_object(pickle::global(module, name), {}, pickle::dict(std::move(state)));
}

inline Value tensor_entry(const char* dtype, const Sizes& shape,
                          const std::vector<DcpChunk>& chunks) {
  pickle::Items list;
  for (const DcpChunk& chunk : chunks)
    list.push_back(dcp_object("ChunkStorageMetadata", {{"offsets", torch_size(chunk.offsets)},
                                                       {"sizes", torch_size(chunk.sizes)}}));
  const Value properties = pickle::new_object(
      pickle::global("torch.distributed.checkpoint.metadata", "TensorProperties"), {},
      pickle::tuple({pickle::global("torch", dtype), Value(), false, Value(), false}));
  return dcp_object("TensorStorageMetadata", {{"properties", properties},
                                              {"size", torch_size(shape)},
                                              {"chunks", pickle::list(std::move(list))}});
}

inline Value index_entry(const std::string& name, const Sizes& offset) {
  return dcp_object("MetadataIndex",
                    {{"fqn", name}, {"index", Value()}, {"offset", torch_size(offset)}});
}

inline Value place_entry(const std::string& file, std::int64_t offset, std::int64_t length) {
  return dcp_object("_StorageInfo",
                    {{"relative_path", file}, {"offset", offset}, {"length", length}},
                    "torch.distributed.checkpoint.filesystem");
}

// As versions of torch up to 2.2 write it: without planner_data, storage_meta and version.
inline Value metadata_value(pickle::Entries tensors, pickle::Entries places) {
  return dcp_object("Metadata", {{"state_dict_metadata", pickle::dict(std::move(tensors))},
                                 {"planner_data", Value()},
                                 {"storage_data", pickle::dict(std::move(places))}});
}

// The bytes of an archive of torch.save with one tensor.
inline std::string tensor_item(const Scratch& scratch, DType dtype, const Sizes& shape,
                               const std::string& bytes) {
  const std::string path = scratch.path("item.pt");
  TorchFileWriter writer(path);
  const Value value = writer.declare("", dtype, shape);
  writer.write("", std::as_bytes(std::span(bytes)));
  writer.finish(value);
  return scratch.read("item.pt");
}

}  // namespace floe::test
