#include "floe/data/loader_setup.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/data/epoch_rest.h"
#include "floe/data/prepared_batches.h"
#include "floe/data/source_plan.h"
#include "floe/data/stream_codec.h"

namespace floe::data {
namespace {

using nlohmann::json;

// What a worker may be ahead, beside the batch that is being filled.
constexpr std::int64_t kQueueBytes = 256 * kMiB;
constexpr std::int64_t kQueuedOfThread = 4, kQueuedDocuments = 32;

// Every stream must have a shard of its own.
std::vector<SourcePlan> plans_of(const LoaderSetup& setup) {
  const DataConfig& config = setup.config;
  std::vector<SourcePlan> plans = source_plans(config, setup.context, setup.transform);
  const std::int64_t streams = setup.context.world * config.workers;
  for (const SourcePlan& plan : plans)
    require<ConfigError>(
        config.resampled || static_cast<std::int64_t>(plan.shards.size()) >= streams,
        plan.shards_key, " names ", plan.shards.size(), " shards, too few for ",
        setup.context.world, " ranks with ", config.workers,
        " workers each; give more, lower data.workers, or set data.resampled");
  return plans;
}

// ------------------------------------------------------------------------------------- identities

// For whom the shards of a source were dealt, and what they were.
struct Deal {
  std::int64_t rank = 0, world = 1, workers = 1;
  std::uint64_t seed = 0;
  Rules rules = Rules::openflamingo;
  bool resampled = false;
  std::uint64_t num_shards = 0, digest = 0;
  std::int64_t per_batch = 0;

  // Streams that were dealt the same way can go on as they are.
  bool deals_like(const Deal& o) const {
    return world == o.world && workers == o.workers && resampled == o.resampled && rules == o.rules;
  }
};

Deal deal_of(const SourcePlan& plan, const LoaderSetup& setup) {
  Hash64 digest;
  for (const std::string& shard : plan.shards) digest.add(shard);
  return {setup.context.rank, setup.context.world, setup.config.workers,
          setup.context.seed, setup.config.rules,  setup.config.resampled,
          plan.shards.size(), digest.value(),      plan.per_batch};
}

json save(const Deal& deal, SourceId id) {
  return {{"source", name_of(id)},
          {"rank", deal.rank},
          {"world", deal.world},
          {"workers", deal.workers},
          {"seed", deal.seed},
          {"rules", deal.rules == Rules::corrected ? "corrected" : "openflamingo"},
          {"resampled", deal.resampled},
          {"num_shards", deal.num_shards},
          {"digest", deal.digest},
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
  deal.digest = get<std::uint64_t>(saved, "digest");
  deal.per_batch = get<std::int64_t>(saved, "per_batch");
  return deal;
}

std::vector<StreamSetup> setups_of(const Deal& deal, SourceId id, const ShuffleConfig& shuffle) {
  const std::uint64_t base =
      loader_base_seeds(deal.seed, deal.rank, static_cast<std::size_t>(id) + 1).back();
  std::vector<StreamSetup> setups;
  for (std::int64_t worker = 0; worker < deal.workers; ++worker) {
    StreamSetup& setup = setups.emplace_back();
    setup.shards = {
        static_cast<std::int64_t>(deal.num_shards),    deal.seed,  worker_seed(base, worker),
        {deal.rank, deal.world, worker, deal.workers}, deal.rules, deal.resampled};
    setup.shuffle = {static_cast<std::size_t>(shuffle.samples),
                     static_cast<std::size_t>(shuffle.initial),
                     std::max<std::int64_t>(1, shuffle.memory.bytes / deal.workers)};
    setup.shuffle_seed = Hash64().add("shuffle").add(setup.shards.worker_seed).value();
  }
  return setups;
}

// ------------------------------------------------------------------------------------ saved states

// What the ranks of a run saved about one source.
struct SavedSource {
  std::vector<Deal> deals;                        // of each rank
  std::vector<std::vector<StreamState>> streams;  // of each rank
};

struct SavedRun {
  std::int64_t epoch = 0, index = 0;
  std::vector<SavedSource> sources;  // as the plans
};

SavedSource load_source(std::span<const json> saved, std::size_t number, const SourcePlan& plan,
                        const ShuffleConfig& shuffle, const Deal& ours) {
  SavedSource source;
  for (std::size_t rank = 0; rank < saved.size(); ++rank) {
    const json all = get<json>(saved[rank], "sources");
    require<DataError>(all.is_array() && number < all.size() &&
                           get<std::string>(all[number], "source") == name_of(plan.id),
                       "loader state: it has other sources than data.", name_of(plan.id),
                       "; resume with the data of the checkpoint, or set run.resume=never");
    const json& own = all[number];
    const Deal& deal = source.deals.emplace_back(load_deal(own));
    require<DataError>(deal.num_shards == ours.num_shards && deal.digest == ours.digest,
                       "loader state: ", plan.shards_key, " names other shards (", ours.num_shards,
                       ") than the checkpoint was made with (", deal.num_shards,
                       "); resume with those, or set run.resume=never");
    require<DataError>(deal.rank == static_cast<std::int64_t>(rank) &&
                           deal.world == static_cast<std::int64_t>(saved.size()),
                       "loader state: the state of rank ", deal.rank, " of ", deal.world,
                       " was given as that of rank ", rank, " of ", saved.size());
    const json streams = get<json>(own, "streams");
    require<DataError>(streams.is_array() && !streams.empty() &&
                           static_cast<std::int64_t>(streams.size()) == deal.workers,
                       "loader state: it does not have one stream per worker");
    const auto setups = setups_of(deal, plan.id, shuffle);
    auto& loaded = source.streams.emplace_back();
    for (std::size_t i = 0; i < setups.size(); ++i)
      loaded.push_back(StreamState::load(streams[i], setups[i]));
  }
  return source;
}

SavedRun load_run(std::span<const json> saved, const std::vector<SourcePlan>& plans,
                  const LoaderSetup& setup) {
  SavedRun run;
  run.epoch = get<std::int64_t>(saved[0], "epoch");
  run.index = get<std::int64_t>(saved[0], "index");
  for (const json& rank : saved)
    require<DataError>(get<std::int64_t>(rank, "format") == 1 &&
                           get<std::int64_t>(rank, "epoch") == run.epoch &&
                           get<std::int64_t>(rank, "index") == run.index,
                       "loader state: the ranks' states are not of one step");
  for (std::size_t i = 0; i < plans.size(); ++i)
    run.sources.push_back(
        load_source(saved, i, plans[i], setup.config.shuffle, deal_of(plans[i], setup)));
  return run;
}

// ------------------------------------------------------------------------------------- beginnings

// Where each source and its streams begin.
struct Beginning {
  std::int64_t epoch = 0, index = 0;
  std::vector<std::vector<StreamState>> streams;  // by source, by worker
};

Beginning at_start(const std::vector<std::vector<StreamSetup>>& setups) {
  Beginning beginning;
  for (const auto& source : setups) {
    auto& streams = beginning.streams.emplace_back();
    for (const StreamSetup& setup : source) streams.emplace_back(setup, 0);
  }
  return beginning;
}

// Steps of the epoch that remain on this world after `done` steps of another.
std::int64_t steps_left(const SavedRun& run, const std::vector<SourcePlan>& plans,
                        const LoaderSetup& setup) {
  std::int64_t left = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Deal& before = run.sources[i].deals.front();
    const std::int64_t done = run.index * before.per_batch * before.world;
    const std::int64_t samples = std::max<std::int64_t>(0, *plans[i].samples_per_epoch - done);
    left = std::max(left, ceil_div(samples, plans[i].per_batch * setup.context.world));
  }
  return round_up(left, setup.config.workers);
}

Beginning dealt_anew(const SavedRun& run, const std::vector<SourcePlan>& plans,
                     const std::vector<std::vector<StreamSetup>>& setups,
                     std::optional<std::int64_t> steps_per_epoch, const LoaderSetup& setup) {
  const std::int64_t workers = setup.config.workers;
  Beginning beginning{run.epoch, run.index / workers * workers, {}};
  if (steps_per_epoch)
    beginning.index = std::max<std::int64_t>(0, *steps_per_epoch - steps_left(run, plans, setup));
  const bool epoch_is_over = steps_per_epoch && beginning.index == *steps_per_epoch;
  if (epoch_is_over) beginning = {run.epoch + 1, 0, {}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Deal& before = run.sources[i].deals.front();
    std::vector<StreamState> old;
    for (const auto& rank : run.sources[i].streams) old.insert(old.end(), rank.begin(), rank.end());
    const EpochRest rest = rest_of(old);
    const bool is_fresh = epoch_is_over || run.index == 0;
    auto& streams = beginning.streams.emplace_back();
    for (std::int64_t worker = 0; worker < workers; ++worker) {
      const StreamSetup& own = setups[i][static_cast<std::size_t>(worker)];
      // As the reader's split: ranks first, then workers.
      const std::int64_t number = setup.context.rank + worker * setup.context.world;
      streams.push_back(is_fresh ? StreamState(own, static_cast<std::uint64_t>(beginning.epoch))
                                 : deal(rest, own, number, setup.context.world * workers,
                                        beginning.index / workers));
    }
    log::info("data.", name_of(plans[i].id), ": saved by ", before.world, " ranks with ",
              before.workers, " workers, resumed by ", setup.context.world, " with ", workers,
              is_fresh ? std::string(": a new epoch begins, dealt to them")
                       : str(": of epoch ", run.epoch, " ", rest.text(),
                             " are dealt anew; nothing is lost or repeated"));
  }
  return beginning;
}

Beginning where_saved(std::span<const json> saved, const std::vector<SourcePlan>& plans,
                      const std::vector<std::vector<StreamSetup>>& setups,
                      std::optional<std::int64_t> steps_per_epoch, const LoaderSetup& setup) {
  SavedRun run = load_run(saved, plans, setup);
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (!run.sources[i].deals.front().deals_like(deal_of(plans[i], setup)))
      return dealt_anew(run, plans, setups, steps_per_epoch, setup);
  Beginning beginning{run.epoch, run.index, {}};
  for (SavedSource& source : run.sources)
    beginning.streams.push_back(
        std::move(source.streams[static_cast<std::size_t>(setup.context.rank)]));
  return beginning;
}

}  // namespace

LoaderParts make_sources(const LoaderSetup& setup, std::span<const json> saved) {
  const DataConfig& config = setup.config;
  require<ConfigError>(!config.sources().empty(), "data: no source is set; set one of ",
                       "data.laion.shards, data.mmc4.shards, data.text.files and data.batches");
  if (config.batches) return make_prepared(*config.batches, setup, saved);

  LoaderParts parts;
  parts.steps_per_epoch = batches_per_epoch(config, setup.context.world);
  const std::vector<SourcePlan> plans = plans_of(setup);
  std::vector<std::vector<StreamSetup>> setups;
  for (const SourcePlan& plan : plans)
    setups.push_back(setups_of(deal_of(plan, setup), plan.id, config.shuffle));
  Beginning beginning = saved.empty()
                            ? at_start(setups)
                            : where_saved(saved, plans, setups, parts.steps_per_epoch, setup);
  parts.epoch = beginning.epoch;
  parts.index = beginning.index;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const SourcePlan& plan = plans[i];
    SampleSourceOptions options;
    options.id = plan.id;
    options.image_slots = plan.image_slots;
    options.setups = setups[i];
    options.starts = std::move(beginning.streams[i]);
    options.rule = plan.rule;
    if (parts.steps_per_epoch)
      options.rule.batches_per_epoch = *parts.steps_per_epoch / config.workers;
    options.reader = {std::make_shared<const std::vector<std::string>>(plan.shards), config.rules,
                      plan.open, nullptr};
    options.maker = plan.maker;
    options.transform = &setup.transform;
    options.queue_samples = (plan.rule.samples ? plan.rule.samples : kQueuedDocuments) +
                            kQueuedOfThread * config.threads;
    options.queue_bytes = kQueueBytes;
    options.identity = save(deal_of(plan, setup), plan.id);
    parts.names.emplace_back(name_of(plan.id));
    parts.sources.push_back(
        std::make_unique<SampleSource>(std::move(options), setup.pool, setup.changed));
  }
  return parts;
}

}  // namespace floe::data
