#include "floe/train/reporting/data_report.h"

#include <map>
#include <nlohmann/json.hpp>

#include "floe/checkpoint/store_exchange.h"
#include "floe/core/log.h"

namespace floe::train {
namespace {

// Collective: what every rank says, by rank.
std::vector<std::string> exchange(const std::string& text, const std::string& what,
                                  comm::World& world) {
  static int number = 0;  // the name of an exchange is used once
  return checkpoint::StoreExchange(world, str("data/", number++)).all_gather(text, what);
}

}  // namespace

SourceCounts sum_over_ranks(const SourceCounts& own, comm::World& world) {
  if (world.size() == 1) return own;
  nlohmann::json saved = nlohmann::json::array();
  for (const auto& [name, counts] : own) saved.push_back(counts.save());
  SourceCounts sums;
  for (const auto& [name, counts] : own) sums.emplace_back(name, data::Counts{});
  for (const std::string& text : exchange(saved.dump(), "the counts of the data", world)) {
    const nlohmann::json rank = nlohmann::json::parse(text);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i].second += data::Counts::load(rank.at(i));
  }
  return sums;
}

std::string data_report(const data::Loader& loader, comm::World& world) {
  return data::report_of(sum_over_ranks(loader.counts(), world));
}

void warn_of_same_batches(const data::Loader& loader, comm::World& world, const std::string& key) {
  if (world.size() == 1) return;
  std::map<std::string, std::size_t> first;  // rank with that digest
  const auto digests = exchange(str(loader.digest()), "the digests of prepared batches", world);
  if (world.rank() != 0) return;
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    const auto [found, is_new] = first.try_emplace(digests[rank], rank);
    if (is_new) continue;
    log::warn(key, ": ranks ", found->second, " and ", rank,
              " have files with the same batches, so that the second adds nothing");
    return;
  }
}

}  // namespace floe::train
