#include "floe/data/loader/loader_setup.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/data/loader/deal.h"
#include "floe/data/loader/epoch_rest.h"
#include "floe/data/loader/prepared_batches.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/shards/shard_order.h"
#include "floe/data/stream/stream_codec.h"

namespace floe::data {
namespace {

using nlohmann::json;

// What a worker may be ahead, beside the batch that is being filled.
constexpr std::int64_t kQueueBytes = 256 * kMiB;
constexpr std::int64_t kQueuedOfThread = 4, kQueuedDocuments = 32;

std::int64_t num_of(const auto& items) { return static_cast<std::int64_t>(items.size()); }

// Shards can be weighed by naming them twice, but that is seldom meant.
void warn_of_repeats(const SourcePlan& plan) {
  std::vector<std::string> names = plan.shards;
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    log::warn(plan.shards_key, " names '", *twice,
              "' more than once, so its samples come more often than others");
}

void tell_of_positions(const SourcePlan& plan) {
  const std::int64_t longest =
      plan.rules.max_tokens > 0 ? plan.rules.max_tokens : plan.batch_rule.tokens;
  if (longest > plan.batch_rule.longest)
    log::info("data.", plan.source->id(), ": texts are cut after ", plan.batch_rule.longest,
              " tokens, as many as the model has positions for");
}

// Every stream must have a shard of its own.
std::vector<SourcePlan> plans_of(const LoaderSetup& setup) {
  const DataConfig& config = setup.config;
  std::vector<SourcePlan> plans = source_plans(config, setup.context, setup.transform);
  const std::int64_t streams = setup.context.world * config.workers;
  for (const SourcePlan& plan : plans) {
    if (setup.context.rank == 0) {
      warn_of_repeats(plan);
      tell_of_positions(plan);
    }
    require<ConfigError>(
        config.resampled || static_cast<std::int64_t>(plan.shards.size()) >= streams,
        plan.shards_key, " names ", counted(num_of(plan.shards), "shard"), ", too few for ",
        counted(setup.context.world, "rank"), " with ", counted(config.workers, "worker"),
        " each; give more, lower data.workers, or set data.resampled");
  }
  return plans;
}

std::vector<StreamSetup> setups_of(const Deal& deal, const DataSource& source,
                                   const ShuffleConfig& shuffle) {
  const std::uint64_t base =
      loader_base_seeds(deal.seed, deal.rank, static_cast<std::size_t>(source.number()) + 1).back();
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

// What ranks of a run saved about one source.
struct SavedSource {
  std::vector<Deal> deals;                        // of each rank
  std::vector<std::vector<StreamState>> streams;  // of each rank
};

// The states of neighbouring ranks: all of them, or one.
struct SomeRanks {
  std::vector<json> states;
  std::int64_t first = 0, world = 1;
};

struct SavedRun {
  std::int64_t epoch = 0, index = 0;
  std::vector<SavedSource> sources;  // as the plans
};

SavedSource load_source(const SomeRanks& saved, std::size_t number, const SourcePlan& plan,
                        const ShuffleConfig& shuffle, const Deal& ours) {
  SavedSource source;
  std::int64_t rank = saved.first;
  for (const json& state : saved.states) {
    const json all = get<json>(state, "sources");
    const json& own = all[number];
    const Deal& deal = source.deals.emplace_back(load_deal(own));
    require_same(deal, ours, plan);
    require<DataError>(deal.rank == rank && deal.world == saved.world,
                       "loader state: the state of rank ", deal.rank, " of ", deal.world,
                       " was given as that of rank ", rank, " of ", saved.world);
    ++rank;
    const json streams = get<json>(own, "streams");
    require<DataError>(streams.is_array() && !streams.empty() &&
                           static_cast<std::int64_t>(streams.size()) == deal.workers,
                       "loader state: it does not have one stream per worker");
    const auto setups = setups_of(deal, *plan.source, shuffle);
    auto& loaded = source.streams.emplace_back();
    for (std::size_t i = 0; i < setups.size(); ++i)
      loaded.push_back(StreamState::load(streams[i], setups[i]));
  }
  return source;
}

SavedRun load_run(const SomeRanks& saved, const std::vector<SourcePlan>& plans,
                  const LoaderSetup& setup) {
  SavedRun run;
  require<DataError>(!saved.states.empty(), "loader state: there is none");
  run.epoch = get<std::int64_t>(saved.states[0], "epoch");
  run.index = get<std::int64_t>(saved.states[0], "index");
  for (const json& rank : saved.states)
    require<DataError>(get<std::int64_t>(rank, "format") == 1 &&
                           get<std::int64_t>(rank, "epoch") == run.epoch &&
                           get<std::int64_t>(rank, "index") == run.index,
                       "loader state: the ranks' states are not of one step");
  std::vector<std::string> names;
  for (const SourcePlan& plan : plans) names.push_back(plan.source->id());
  for (const json& rank : saved.states)
    if (const std::string before = sources_text(get<json>(rank, "sources")); before != join(names))
      throw OtherData("data", before, join(names));
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
    const std::int64_t samples = std::max<std::int64_t>(0, *plans[i].per_epoch - done);
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
    log::info("data.", plans[i].source->id(), ": saved by ", counted(before.world, "rank"),
              " with ", counted(before.workers, "worker"), ", resumed by ",
              counted(setup.context.world, "rank"), " with ", counted(workers, "worker"),
              before.per_batch == plans[i].per_batch
                  ? std::string()
                  : str(" and batches of ", plans[i].per_batch, " instead of ", before.per_batch),
              is_fresh ? std::string(": a new epoch begins, dealt to them")
                       : str(": what is left of epoch ", run.epoch, " (", rest.text(),
                             ") is dealt anew; nothing is lost or repeated"));
  }
  return beginning;
}

// Whether the streams can go on as they are, each by itself.
bool goes_on_alike(const SavedRun& run, const std::vector<SourcePlan>& plans,
                   std::optional<std::int64_t> steps_per_epoch, const LoaderSetup& setup) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Deal& before = run.sources[i].deals.front();
    // Streams count an epoch in batches, so with others they have to begin anew inside of it.
    const bool counts_alike = !steps_per_epoch || before.per_batch == plans[i].per_batch;
    if (!counts_alike || !before.deals_like(deal_of(plans[i], setup))) return false;
  }
  return true;
}

Beginning where_saved(const SavedRanks& saved, const std::vector<SourcePlan>& plans,
                      const std::vector<std::vector<StreamSetup>>& setups,
                      std::optional<std::int64_t> steps_per_epoch, const LoaderSetup& setup) {
  const auto all = [&] { return load_run({saved.all(), 0, saved.world}, plans, setup); };
  const std::int64_t rank = setup.context.rank;
  if (saved.world != setup.context.world)
    return dealt_anew(all(), plans, setups, steps_per_epoch, setup);
  SavedRun run = load_run({{saved.of(rank)}, rank, saved.world}, plans, setup);
  if (!goes_on_alike(run, plans, steps_per_epoch, setup))
    return dealt_anew(all(), plans, setups, steps_per_epoch, setup);
  Beginning beginning{run.epoch, run.index, {}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    SavedSource& source = run.sources[i];
    if (const std::int64_t before = source.deals.front().per_batch; before != plans[i].per_batch)
      log::info("data.", plans[i].source->id(), ": batches of ", plans[i].per_batch, " instead of ",
                before, " from here on; the samples go on where they were");
    beginning.streams.push_back(std::move(source.streams.front()));
  }
  return beginning;
}

}  // namespace

std::vector<SourcePlan> source_plans(const DataConfig& config, const LoaderContext& context,
                                     const image::Transform& transform) {
  std::vector<SourcePlan> plans;
  for (const DataSource* source : sources_of(config)) {
    require<ConfigError>(context.tokenizer, "data: there is no tokenizer to read samples with");
    SourcePlan& plan = plans.emplace_back();
    plan.source = source;
    plan.shards_key = context.keys.of(*source);
    plan.shards_text = source->files(config);
    try {
      plan.shards = expand_shards(plan.shards_text);
    } catch (const ConfigError& error) {  // it names the key that it is about
      throw ConfigError(str(plan.shards_key, ": ", error.what()));
    }
    plan.rules = source->rules(
        config, {*context.tokenizer, context.tokens, transform, config.rules, context.positions});
    plan.per_batch = source->per_batch(config);
    plan.per_epoch = source->per_epoch(config);
    BatchRule& rule = plan.batch_rule;
    (source->info().counts_tokens ? rule.tokens : rule.samples) = plan.per_batch;
    rule.longest = context.positions;
    rule.flips = plan.rules.flips;
    rule.max_bad_fraction = config.max_bad_fraction;
  }
  return plans;
}

std::string sources_text(const json& sources) {
  require<DataError>(sources.is_array(), "loader state: 'sources' is no list");
  std::vector<std::string> names;
  for (const json& source : sources) names.push_back(get<std::string>(source, "source"));
  return join(names);
}

LoaderParts make_sources(const LoaderSetup& setup, const SavedRanks& saved) {
  const DataConfig& config = setup.config;
  require<ConfigError>(!config.sources().empty(), "data: no source is set; set one of ",
                       source_keys("data."), " and data.batches");
  if (config.batches) return make_prepared(*config.batches, setup, saved);

  LoaderParts parts;
  parts.steps_per_epoch = batches_per_epoch(config, setup.context.world);
  const std::vector<SourcePlan> plans = plans_of(setup);
  std::vector<std::vector<StreamSetup>> setups;
  for (const SourcePlan& plan : plans)
    setups.push_back(setups_of(deal_of(plan, setup), *plan.source, config.shuffle));
  Beginning beginning = saved.world == 0
                            ? at_start(setups)
                            : where_saved(saved, plans, setups, parts.steps_per_epoch, setup);
  parts.epoch = beginning.epoch;
  parts.index = beginning.index;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const SourcePlan& plan = plans[i];
    SampleSourceOptions options;
    options.source = plan.source;
    options.image_slots = plan.rules.image_slots;
    options.image_size = setup.transform.size();
    options.setups = setups[i];
    options.starts = std::move(beginning.streams[i]);
    options.rule = plan.batch_rule;
    if (parts.steps_per_epoch)
      options.rule.batches_per_epoch = *parts.steps_per_epoch / config.workers;
    options.reader = {std::make_shared<const std::vector<std::string>>(plan.shards), config.rules,
                      plan.rules.open, nullptr};
    options.maker = plan.rules.maker;
    options.queue_samples = (plan.batch_rule.samples ? plan.batch_rule.samples : kQueuedDocuments) +
                            kQueuedOfThread * config.threads;
    options.queue_bytes = kQueueBytes;
    options.identity = save(deal_of(plan, setup), *plan.source);
    parts.names.push_back(plan.source->id());
    parts.sources.push_back(
        std::make_unique<SampleSource>(std::move(options), setup.pool, setup.changed));
  }
  return parts;
}

}  // namespace floe::data
