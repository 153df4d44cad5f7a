#include "floe/data/loader/deal.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/str.h"
#include "floe/data/loader/loader_setup.h"
#include "floe/data/stream/stream_codec.h"

namespace floe::data {
namespace {

using nlohmann::json;

const char* name_of(Rules rules) {
  return rules == Rules::corrected ? "corrected" : "openflamingo";
}

// The digests of Deal.
std::vector<std::uint64_t> digests_of(const std::vector<std::string>& shards) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path here = fs::current_path(failed);
  Hash64 as_given, absolute, relative, dotted;
  for (const std::string& shard : shards) {
    as_given.add(shard);
    const bool is_file = !shard.starts_with("pipe:") && !failed;
    const fs::path whole = is_file ? (here / shard).lexically_normal() : fs::path(shard);
    absolute.add(whole.string());
    const std::string seen = is_file ? whole.lexically_relative(here).string() : shard;
    relative.add(seen);
    dotted.add(is_file ? "./" + seen : shard);
  }
  return {as_given.value(), absolute.value(), relative.value(), dotted.value()};
}

bool have_same_shards(const Deal& a, const Deal& b) {
  return a.num_shards == b.num_shards &&
         std::find_first_of(a.digests.begin(), a.digests.end(), b.digests.begin(),
                            b.digests.end()) != a.digests.end();
}

std::string shards_text(const Deal& deal) {
  return str(deal.shards.empty() ? "" : str("'", deal.shards, "', "),
             counted(static_cast<std::int64_t>(deal.num_shards), "shard"));
}

}  // namespace

Deal deal_of(const SourcePlan& plan, const LoaderSetup& setup) {
  return {setup.context.rank, setup.context.world,    setup.config.workers, setup.context.seed,
          setup.config.rules, setup.config.resampled, plan.shards.size(),   digests_of(plan.shards),
          plan.shards_text,   plan.per_batch};
}

json save(const Deal& deal, const DataSource& source) {
  return {{"source", source.id()},       {"rank", deal.rank},
          {"world", deal.world},         {"workers", deal.workers},
          {"seed", deal.seed},           {"rules", name_of(deal.rules)},
          {"resampled", deal.resampled}, {"num_shards", deal.num_shards},
          {"digests", deal.digests},     {"shards", deal.shards},
          {"per_batch", deal.per_batch}};
}

Deal load_deal(const json& saved) {
  Deal deal;
  deal.rank = get<std::int64_t>(saved, "rank");
  deal.world = get<std::int64_t>(saved, "world");
  deal.workers = get<std::int64_t>(saved, "workers");
  deal.seed = get<std::uint64_t>(saved, "seed");
  deal.rules =
      get<std::string>(saved, "rules") == "corrected" ? Rules::corrected : Rules::openflamingo;
  deal.resampled = get<bool>(saved, "resampled");
  deal.num_shards = get<std::uint64_t>(saved, "num_shards");
  if (saved.contains("digest")) {  // of the names as they were written
    deal.digests = {get<std::uint64_t>(saved, "digest")};
  } else {
    const json digests = get<json>(saved, "digests");
    require<DataError>(digests.is_array(), "loader state: 'digests' is no list");
    for (const json& digest : digests) {
      require<DataError>(digest.is_number_unsigned(), "loader state: 'digests' has no numbers");
      deal.digests.push_back(digest.get<std::uint64_t>());
    }
    deal.shards = get<std::string>(saved, "shards");
  }
  deal.per_batch = get<std::int64_t>(saved, "per_batch");
  return deal;
}

void require_same(const Deal& before, const Deal& now, const SourcePlan& plan) {
  const auto check = [](const char* key, const auto& was, const auto& is) {
    if (str(was) != str(is)) throw OtherData(key, str(was), str(is));
  };
  if (!have_same_shards(before, now))
    throw OtherData(plan.shards_key, shards_text(before), shards_text(now));
  check("data.rules", name_of(before.rules), name_of(now.rules));
  check("data.resampled", before.resampled ? "true" : "false", now.resampled ? "true" : "false");
  check("run.seed", before.seed, now.seed);
}

}  // namespace floe::data
