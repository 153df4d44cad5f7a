// The file .metadata of a directory of torch.distributed.checkpoint (DCP): which tensors and objects a
// checkpoint has, and where their bytes lie.
//
// It is one pickle of plain data classes; it is read as data (pickle_reader.h), nothing runs. What
// versions of torch differ in is accepted: storage_meta and version may be missing (torch 2.2 and
// before), so may planner_data, and TensorProperties may come from the older module.
//
// A tensor is a set of chunks: rectangles of its elements, each stored on its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/dcp_chunk.h"
#include "floe/io/pickle_value.h"

namespace floe {

constexpr const char* kDcpMetadataFile = ".metadata";

struct DcpTensor {
  std::vector<std::int64_t> shape;
  std::optional<DType>
      dtype;  // none: of a kind that floe does not read, and then why_unreadable says
  std::string why_unreadable;  // a part of a sentence: "has dtype torch.complex64, ..."
  // Disjoint, and together they are the whole tensor; without empty ones and without replicas. In the
  // order of their offsets.
  std::vector<DcpChunk> chunks;
};

struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;  // by flat name: "model.layers.0.weight"
  // What is no tensor (numbers, texts, lists of them), each pickled by torch.save; by flat name.
  std::map<std::string, DcpPlace> objects;
  // Of the data: relative, inside of the directory.
  std::vector<std::string> files;
  // The way to a flat name through nested dicts (text) and lists (integers), as tuples:
  // "optimizer.param_groups.0.lr" -> ("optimizer", "param_groups", 0, "lr").
  std::map<std::string, pickle::Value> paths;
  std::string version;  // "1.0.0"; empty when torch did not write one
};

// True when the directory has the metadata of a DCP checkpoint.
bool is_dcp_directory(const std::string& directory);

// Throws CheckpointError, one sentence that names the file and the entry, for metadata that is missing
// (an unfinished save), damaged, or says what cannot be: a chunk outside of its tensor, chunks that
// overlap, elements that no chunk has, a chunk without a place, a file outside of the directory.
DcpMetadata read_dcp_metadata(const std::string& directory);
// The same of the bytes of one metadata file; `file` is for messages.
DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& file);

}  // namespace floe
