// What one rank writes of a checkpoint: __R_0.distcp with its tensors, and floe_rank_R.json, which
// says what lies where, with checksums, and holds the rank's own state. With the second files of
// all ranks a directory of torch.distributed.checkpoint is put together (assemble).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/checkpoint/run_state.h"

namespace floe::checkpoint {

struct RankHeader {
  std::int64_t step = 0;
  int rank = 0, world_size = 1;
  std::string run;        // names one start of the program: slices of two starts never mix
  std::string model;      // model_digest
  nlohmann::json state;   // of the rank
  nlohmann::json shared;  // of the run; only in an emergency, else null
  std::vector<SavedSet> sets;
  nlohmann::json holdings;  // Holdings; only in an emergency, else null
};

struct RankChunk {
  std::vector<std::int64_t> offsets, sizes;
  std::int64_t offset = 0, length = 0;  // in the rank's file
  std::uint32_t crc = 0;
};
struct RankTensor {
  std::vector<std::string> path, other_names;
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;
  std::vector<RankChunk> chunks;
  std::string rest_of;  // as in StateTensor
};
struct RankObject {
  std::string name;
  nlohmann::json path;
  std::int64_t offset = 0, length = 0;
  std::uint32_t crc = 0;
};
struct RankManifest {
  RankHeader header;
  CheckedRange file;  // itself
  std::int64_t file_bytes = 0;
  std::vector<RankTensor> tensors;
  std::vector<RankObject> objects;
};

std::string data_file(int rank);      // "__3_0.distcp"
std::string manifest_file(int rank);  // "floe_rank_3.json"

// Writes both files into the folder and returns when they are on disk. Values are in host memory.
void write_rank_files(const std::string& folder, const RankHeader& header,
                      const std::vector<StateTensor>& tensors,
                      const std::vector<StateObject>& objects);

// Throws CheckpointError for a file that is missing, damaged, or says what cannot be.
RankManifest read_rank_manifest(const std::string& folder, int rank);

}  // namespace floe::checkpoint
