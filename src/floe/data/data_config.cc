#include "floe/data/data_config.h"

#include "floe/core/error.h"
#include "floe/data/shards/shard_order.h"
#include "floe/data/sources/source.h"
#include "floe/schema/schema.h"

namespace floe {
namespace {

// The checks below need no world size, so they are made when the configuration is read.
std::string missing_source(const DataConfig& c) {
  return c.sources().empty() ? str("is not set, nor is any other source; set one of ",
                                   data::source_keys(), " and batches")
                             : "";
}

// Beside prepared batches the blocks of the sources only say how their losses are weighed.
std::string files_problem(const data::DataSource& source, const DataConfig& c) {
  if (!source.is_set(c)) return "";
  const std::string& key = source.info().files_key;
  const bool given = !source.files(c).empty();
  if (c.batches && given)
    return str("has ", key,
               ", but data.batches is set: a file of prepared batches holds every "
               "source; remove one of them");
  return c.batches || given ? "" : str("has no ", key, "; set it, or remove the block");
}

}  // namespace

void describe(config::Schema<ShuffleConfig>& s) {
  using C = ShuffleConfig;
  s.field("samples", &C::samples, "Samples that a worker's buffer holds; 1 leaves them in order")
      .at_least(1)
      .at_most(10'000'000);
  s.field("initial", &C::initial, "Samples from which on the buffer gives some").at_least(1);
  s.field("memory", &C::memory,
          "Bytes that the buffers of a source may hold on a rank; a buffer of large samples then "
          "holds fewer of them")
      .more_than(0);
  s.check("initial", [](const C& c) {
    return c.initial > c.samples ? str("is ", c.initial, ", more than samples, which is ",
                                       c.samples, ": the buffer would never give one")
                                 : "";
  });
}

void describe(config::Schema<DataConfig>& s) {
  using C = DataConfig;
  for (const auto& source : data::data_sources()) source->describe(s);
  s.field("batches", &C::batches, "A safetensors file of prepared batches; {rank} is filled in")
      .not_empty();
  s.field("rules", &C::rules, "openflamingo follows OpenFlamingo, corrected mends its faults");
  s.field("resampled", &C::resampled, "Draw shards with replacement instead of dealing them out");
  s.field("workers", &C::workers, "Logical streams of a source on each rank; part of the order")
      .at_least(1)
      .at_most(256);
  s.field("threads", &C::threads, "Threads that decode and tokenise; the result is always the same")
      .at_least(1)
      .at_most(1024);
  s.field("max_bad_fraction", &C::max_bad_fraction,
          "Share of damaged samples, or of shards, above which the run stops; 0 allows none")
      .at_least(0)
      .at_most(1);
  s.section("shuffle", &C::shuffle, "The buffer out of which samples are drawn at random");
  s.check(data::data_sources().front()->id(), missing_source);
  for (const auto& source : data::data_sources())
    s.check(source->id(), [&source](const C& c) { return files_problem(*source, c); });
}

std::vector<std::string> DataConfig::sources() const {
  if (batches) return {"batches"};
  std::vector<std::string> names;
  for (const data::DataSource* source : data::sources_of(*this)) names.push_back(source->id());
  return names;
}

std::optional<std::int64_t> batches_per_epoch(const DataConfig& config, std::int64_t world) {
  std::vector<const data::DataSource*> ending;
  std::vector<std::string> endless;  // "data.text.num_tokens"
  for (const data::DataSource* source : data::sources_of(config))
    if (source->per_epoch(config))
      ending.push_back(source);
    else
      endless.push_back(source->per_epoch_key());
  if (ending.empty()) return std::nullopt;
  const data::DataSource& first = *ending.front();
  require<ConfigError>(endless.empty(), first.per_epoch_key(), " gives an epoch an end, but ",
                       join(endless), " is null, which has none; set both or neither");
  const auto batches_of = [&](const data::DataSource& source) {
    return data::epoch_size(*source.per_epoch(config), source.per_batch(config), world,
                            config.workers)
        .batches;
  };
  const std::int64_t batches = batches_of(first);
  for (const data::DataSource* other : ending)
    require<ConfigError>(
        batches_of(*other) == batches, "on ", world, " ranks ", first.per_epoch_key(), ": ",
        *first.per_epoch(config), " is ", batches, " batches an epoch, but ",
        other->per_epoch_key(), ": ", *other->per_epoch(config), " is ", batches_of(*other),
        "; set ", other->per_epoch_key(), ": ", batches * other->per_batch(config) * world, ", or ",
        first.per_epoch_key(), ": ", batches_of(*other) * first.per_batch(config) * world);
  return batches;
}

}  // namespace floe
