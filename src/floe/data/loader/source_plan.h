// A source of samples as the configuration has it: what it reads, and what it makes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/loader/loader.h"
#include "floe/data/stream/stream_batches.h"

namespace floe::data {

struct SourcePlan {
  SourceId id;
  std::string shards_key;   // "data.laion.shards"
  std::string shards_text;  // as the configuration names them
  std::vector<std::string> shards;
  BatchRule rule;
  std::shared_ptr<const SampleMaker> maker;
  OpenShard open = open_tar;
  std::optional<std::int64_t> samples_per_epoch;  // or tokens
  std::int64_t per_batch = 0;                     // samples, or tokens
  std::int64_t image_slots = 0;                   // of Batch
};

// Of every source that reads samples. Makers keep references to tokenizer and transform.
std::vector<SourcePlan> source_plans(const DataConfig& config, const LoaderContext& context,
                                     const image::Transform& transform);

}  // namespace floe::data
