#include "floe/train/reporting/data_report.h"

#include <map>
#include <nlohmann/json.hpp>

#include "floe/checkpoint/store_exchange.h"
#include "floe/core/log.h"

namespace floe::train {
namespace {

// Collective: what rank 0 makes of what every rank says.
std::string exchange(const std::string& text, const std::string& what, comm::World& world,
                     const checkpoint::StoreExchange::Make& make) {
  return checkpoint::StoreExchange(world, "data", world.count("data")).combine(text, what, make);
}

nlohmann::json saved(const SourceCounts& counts) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, own] : counts) list.push_back(own.save());
  return list;
}

}  // namespace

SourceCounts sum_over_ranks(const SourceCounts& own, comm::World& world) {
  if (world.size() == 1) return own;
  const auto add = [](SourceCounts& sums, const std::string& text) {
    const nlohmann::json counts = nlohmann::json::parse(text);
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i].second += data::Counts::load(counts.at(i));
  };
  SourceCounts none;
  for (const auto& [name, counts] : own) none.emplace_back(name, data::Counts{});
  const auto sum = [&](const std::vector<std::string>& texts) {
    SourceCounts all = none;
    for (const std::string& text : texts) add(all, text);
    return saved(all).dump();
  };
  SourceCounts sums = none;
  add(sums, exchange(saved(own).dump(), "the counts of the data", world, sum));
  return sums;
}

std::string data_report(const data::Loader& loader, comm::World& world) {
  return data::report_of(sum_over_ranks(loader.counts(), world));
}

void warn_of_same_batches(const data::Loader& loader, comm::World& world, const std::string& key) {
  if (world.size() == 1) return;
  const auto find_same = [&](const std::vector<std::string>& digests) -> std::string {
    std::map<std::string, std::size_t> first;  // rank with that digest
    for (std::size_t rank = 0; rank < digests.size(); ++rank) {
      const auto [found, is_new] = first.try_emplace(digests[rank], rank);
      if (is_new) continue;
      log::warn(key, ": ranks ", found->second, " and ", rank,
                " have files with the same batches, so that the second adds nothing");
      break;
    }
    return "";
  };
  exchange(str(loader.digest()), "the digests of prepared batches", world, find_same);
}

}  // namespace floe::train
