#include "floe/data/data_config.h"

#include "floe/config/schema.h"
#include "floe/core/error.h"
#include "floe/data/shards/shard_order.h"

namespace floe {
namespace {

// What one source says about the length of an epoch.
struct Length {
  std::string name, key;       // "laion", "num_samples"
  std::int64_t samples = 0;    // or tokens
  std::int64_t per_batch = 0;  // samples (or tokens) of a batch of one rank
};

struct Lengths {
  std::vector<Length> given;
  std::vector<std::string> endless;  // "data.text.num_tokens"
};

Lengths lengths_of(const DataConfig& config) {
  Lengths lengths;
  const auto add = [&](const char* name, const char* key, const auto& samples, std::int64_t batch) {
    if (samples)
      lengths.given.push_back({name, key, *samples, batch});
    else
      lengths.endless.push_back(str("data.", name, ".", key));
  };
  if (const auto& c = config.laion) add("laion", "num_samples", c->num_samples, c->batch_size);
  if (const auto& c = config.mmc4) add("mmc4", "num_samples", c->num_samples, c->batch_size);
  if (const auto& c = config.text) add("text", "num_tokens", c->num_tokens, c->tokens);
  return lengths;
}

// The checks below need no world size, so they are made when the configuration is read.
std::string missing_source(const DataConfig& c) {
  return c.sources().empty() ? "is not set, nor is any other source; set one of laion.shards, "
                               "mmc4.shards, text.files and batches"
                             : "";
}

// Beside prepared batches the blocks of the sources only say how their losses are weighed.
template <class C>
auto shards_problem(std::optional<C> DataConfig::*block, const char* key, std::string C::*shards) {
  return [=](const DataConfig& c) -> std::string {
    if (!(c.*block)) return "";
    const bool given = !((*(c.*block)).*shards).empty();
    if (c.batches && given)
      return str("has ", key,
                 ", but data.batches is set: a file of prepared batches holds every "
                 "source; remove one of them");
    return c.batches || given ? "" : str("has no ", key, "; set it, or remove the block");
  };
}

template <class C>
void shard_fields(config::Schema<C>& s) {
  s.field("shards", &C::shards,
          "Tar shards: a path with {000..127} or {a,b}, several joined by ::, pipe:COMMAND or "
          "s3://…");
  s.field("batch_size", &C::batch_size, "Samples of a batch on each rank")
      .at_least(1)
      .at_most(1'000'000);
  s.field("weight", &C::weight, "What the loss of this source is multiplied with").at_least(0);
  s.field("num_samples", &C::num_samples,
          "Samples of an epoch over all ranks; null: the shards repeat without end")
      .at_least(1);
}

}  // namespace

void describe(config::Schema<LaionConfig>& s) { shard_fields(s); }

void describe(config::Schema<Mmc4Config>& s) {
  using C = Mmc4Config;
  shard_fields(s);
  s.field("max_images", &C::max_images, "Most pictures of a document").at_least(1).at_most(1000);
  s.field("min_images", &C::min_images, "Documents with fewer are dropped").at_least(0);
  s.field("max_tokens", &C::max_tokens, "Tokens after which a document is cut")
      .at_least(1)
      .at_most(1'000'000);
  s.field("text_sim_threshold", &C::text_sim_threshold,
          "Pictures less similar to their sentence are left out");
  s.check("min_images", [](const C& c) {
    return c.min_images > c.max_images
               ? str("is ", c.min_images, ", more than max_images, which is ", c.max_images,
                     ": no document could be kept")
               : "";
  });
}

void describe(config::Schema<TextConfig>& s) {
  using C = TextConfig;
  s.field(
      "files", &C::files,
      "Text: .jsonl with a field 'text' (also .gz, .zst, …) or tars of .txt, written as shards");
  s.field("tokens", &C::tokens, "Tokens of a batch on each rank").at_least(2).at_most(100'000'000);
  s.field("weight", &C::weight, "What the loss of this source is multiplied with").at_least(0);
  s.field("num_tokens", &C::num_tokens,
          "Tokens of an epoch over all ranks; null: the files repeat without end")
      .at_least(1);
}

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
  s.field("laion", &C::laion, "Image-text pairs");
  s.field("mmc4", &C::mmc4, "Interleaved documents");
  s.field("text", &C::text, "Plain text");
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
  s.check("laion", missing_source);
  s.check("laion", shards_problem(&C::laion, "shards", &LaionConfig::shards));
  s.check("mmc4", shards_problem(&C::mmc4, "shards", &Mmc4Config::shards));
  s.check("text", shards_problem(&C::text, "files", &TextConfig::files));
}

std::vector<std::string> DataConfig::sources() const {
  if (batches) return {"batches"};
  std::vector<std::string> names;
  if (laion) names.emplace_back("laion");
  if (mmc4) names.emplace_back("mmc4");
  if (text) names.emplace_back("text");
  return names;
}

std::optional<std::int64_t> batches_per_epoch(const DataConfig& config, std::int64_t world) {
  const Lengths lengths = lengths_of(config);
  if (lengths.given.empty()) return std::nullopt;
  const Length& first = lengths.given.front();
  require<ConfigError>(lengths.endless.empty(), "data.", first.name, ".", first.key,
                       " gives an epoch an end, but ", join(lengths.endless),
                       " is null, which has none; set both or neither");
  const auto batches_of = [&](const Length& length) {
    return data::epoch_size(length.samples, length.per_batch, world, config.workers).batches;
  };
  const std::int64_t batches = batches_of(first);
  for (const Length& other : lengths.given)
    require<ConfigError>(
        batches_of(other) == batches, "on ", world, " ranks data.", first.name, ".", first.key,
        ": ", first.samples, " is ", batches, " batches an epoch, but data.", other.name, ".",
        other.key, ": ", other.samples, " is ", batches_of(other), "; set data.", other.name, ".",
        other.key, ": ", batches * other.per_batch * world, ", or data.", first.name, ".",
        first.key, ": ", batches_of(other) * first.per_batch * world);
  return batches;
}

}  // namespace floe
