// Everything that a stream needs to go on behind a batch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>

#include "floe/data/loader_counts.h"
#include "floe/data/stream_position.h"
#include "floe/data/torch_random.h"

namespace floe::data {

// What makes one stream differ from another.
struct StreamSetup {
  ShardsOptions shards;
  ShuffleSize shuffle;
  std::uint64_t shuffle_seed = 0;  // of epoch 0

  StreamPosition begin(std::uint64_t epoch) const;
};

// A document of which the first `tokens` tokens were in the batches so far.
struct Carried {
  SampleRef sample;
  std::int64_t tokens = 0;
};

struct StreamState {
  // At the beginning of an epoch. The worker's own generators run on over epochs.
  StreamState(const StreamSetup& setup, std::uint64_t epoch);
  explicit StreamState(StreamPosition at, std::uint64_t worker_seed)
      : position(std::move(at)), coins(worker_seed), flips(worker_seed) {}

  StreamPosition position;
  std::optional<Carried> carried;
  PythonRandom coins;  // for documents with a single picture
  TorchRandom flips;
  Counts counts;                      // since the run began
  std::set<std::int64_t> bad_shards;  // that could not be read to their end, each once
  std::int64_t batches_of_epoch = 0;  // given by this stream
  std::int64_t batches_of_pass = 0;

  nlohmann::json save() const;
  static StreamState load(const nlohmann::json& saved, const StreamSetup& setup);
};

}  // namespace floe::data
