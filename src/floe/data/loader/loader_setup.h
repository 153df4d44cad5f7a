// From the block `data:` to the sources of a loader, at the beginning or where a run was saved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "floe/data/loader/loader.h"
#include "floe/data/sources/source.h"

namespace floe::data {

// A source of samples as the configuration has it: what it reads, and what it makes of it.
struct SourcePlan {
  const DataSource* source = nullptr;
  std::string shards_key;   // "data.laion.shards"
  std::string shards_text;  // as the configuration names them
  std::vector<std::string> shards;
  SourceRules rules;
  BatchRule batch_rule;
  std::int64_t per_batch = 0;  // samples, or tokens
  std::optional<std::int64_t> per_epoch;
};

// Of every source that the configuration sets. Makers keep references to tokenizer and transform.
std::vector<SourcePlan> source_plans(const DataConfig& config, const LoaderContext& context,
                                     const image::Transform& transform);

struct LoaderParts {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<BatchSource>> sources;
  std::optional<std::int64_t> steps_per_epoch;
  std::uint64_t fingerprint = 0;      // see Loader::fingerprint
  std::uint64_t digest = 0;           // see Loader::digest
  std::int64_t epoch = 0, index = 0;  // of the first step
};

// What the sources keep references to.
struct LoaderSetup {
  const DataConfig& config;
  const LoaderContext& context;
  const image::Transform& transform;
  TaskPool& pool;
  std::function<void()> changed;
};

// "laion, mmc4": of a saved state.
std::string sources_text(const nlohmann::json& sources);

// `saved` is empty at the beginning. Throws ConfigError and DataError as the
// constructors of Loader.
LoaderParts make_sources(const LoaderSetup& setup, const SavedRanks& saved);

}  // namespace floe::data
