// For whom the shards of a source were dealt, and what they were: a saved state has it, so that the
// data is known again.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/data/sample.h"

namespace floe::data {

class DataSource;
struct LoaderSetup;
struct SourcePlan;

struct Deal {
  std::int64_t rank = 0, world = 1, workers = 1;
  std::uint64_t seed = 0;
  Rules rules = Rules::openflamingo;
  bool resampled = false;
  std::uint64_t num_shards = 0;
  // Of the shards' names. One is enough to know them again: absolute names, and those seen from the
  // working directory (also with ./ in front), by which a folder that was moved keeps its data.
  std::vector<std::uint64_t> digests;
  std::string shards;  // as the configuration names them; empty: it was not kept
  std::int64_t per_batch = 0;

  // Streams that were dealt the same way can go on as they are.
  bool deals_like(const Deal& o) const { return world == o.world && workers == o.workers; }
};

// Of this run.
Deal deal_of(const SourcePlan& plan, const LoaderSetup& setup);

nlohmann::json save(const Deal& deal, const DataSource& source);
// Throws DataError for a state that is not whole.
Deal load_deal(const nlohmann::json& saved);

// Throws OtherData with the first thing by which the data was another.
void require_same(const Deal& before, const Deal& now, const SourcePlan& plan);

}  // namespace floe::data
