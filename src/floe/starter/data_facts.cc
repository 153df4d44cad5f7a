#include "floe/starter/data_facts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "floe/config/load.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/data/stream/counts.h"
#include "floe/image/transform.h"
#include "floe/starter/walk_shard.h"

namespace floe::starter {
namespace {

namespace fs = std::filesystem;

// Up to here everything is read; of more, some shards are, and of a large one its beginning.
constexpr std::int64_t kReadAllBytes = 256 * kMiB, kMostBytesOfShard = 512 * kMiB;
constexpr std::size_t kReadAllShards = 512, kSomeShards = 4;
// Samples are counted by reading them; so many of them are also decoded and tokenised.
constexpr std::int64_t kMostMade = 512;
constexpr std::int64_t kUnknownTokens = 1024;  // of a sample that could not be looked at

struct ShardFacts {
  std::int64_t seen = 0, made = 0, kept = 0, single_image = 0, tokens = 0;
  std::int64_t bytes_read = 0;  // of samples
  bool cut = false;             // there are more samples in it
  std::string damage;
};

bool is_command(const std::string& shard) { return shard.starts_with("pipe:"); }

// 0 for a command, and for what has no size.
std::int64_t size_of_file(const std::string& shard) {
  std::error_code failed;
  if (is_command(shard) || !fs::is_regular_file(shard, failed)) return 0;
  const auto size = fs::file_size(shard, failed);
  return failed ? 0 : static_cast<std::int64_t>(size);
}

bool is_compressed(const std::string& name) {
  for (const char* end : {".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4"})
    if (name.ends_with(end)) return true;
  return false;
}

// Evenly over the list, beginning with the first.
std::vector<std::size_t> some_of(std::size_t count, std::size_t wanted) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < std::min(count, wanted); ++i)
    chosen.push_back(i * count / std::min(count, wanted));
  return chosen;
}

// What usable samples come to where a coin drops half of those with one picture.
double usable_of(const ShardFacts& shard) {
  return static_cast<double>(shard.kept) - static_cast<double>(shard.single_image) / 2;
}

class DataLook {
 public:
  DataLook(DataFacts& facts, const data::SourceRules& rules) : facts_(facts), rules_(rules) {}

  void at(const std::string& shard, std::int64_t most_made) {
    ShardFacts found;
    found.damage = walk_shard(shard, rules_.open, [&](const data::RawSample& raw) {
      ++found.seen;
      for (const data::Field& field : raw.fields)
        found.bytes_read += static_cast<std::int64_t>(field.bytes.size());
      if (found.made < most_made) add(rules_.maker->make(raw), found);
      found.cut = found.bytes_read >= kMostBytesOfShard;
      return !found.cut;
    });
    if (!found.damage.empty()) damage_.push_back(found.damage);
    facts_.seen += found.seen;
    facts_.made += found.made;
    facts_.kept += found.kept;
    single_image_ += found.single_image;
    if (found.seen > 0) least_ = std::min(least_, content_of(found));
    const std::int64_t size = size_of_file(shard);
    looked_at_bytes_ += found.cut ? std::min(size, found.bytes_read) : size;
    // How far in a compressed file this is cannot be known.
    unknown_ = unknown_ || (found.cut && (is_command(shard) || is_compressed(shard)));
    cut_ = cut_ || found.cut;
  }

  // After the last shard.
  void finish() {
    DataFacts& f = facts_;
    if (f.kept > 0) {
      f.mean_tokens = static_cast<double>(tokens_) / static_cast<double>(f.kept);
      f.mean_images = static_cast<double>(images_) / static_cast<double>(f.kept);
    }
    const std::size_t there = f.num_shards - f.missing.size();
    const bool all = f.num_looked_at == there && !cut_;
    f.exact = all && f.made == f.seen;
    if (all)
      f.samples = f.seen;
    else if (unknown_)
      f.samples = std::nullopt;
    else if (f.commands)
      f.samples = f.seen * static_cast<std::int64_t>(there) /
                  static_cast<std::int64_t>(std::max<std::size_t>(1, f.num_looked_at));
    else
      f.samples = std::llround(static_cast<double>(f.seen) * static_cast<double>(f.bytes) /
                               static_cast<double>(std::max<std::int64_t>(1, looked_at_bytes_)));
    const double usable = static_cast<double>(f.kept) - static_cast<double>(single_image_) / 2;
    if (f.made > 0)
      f.usable = static_cast<std::int64_t>(static_cast<double>(f.samples.value_or(f.seen)) *
                                           usable / static_cast<double>(f.made));
    f.least_in_shard = f.seen > 0 ? static_cast<std::int64_t>(least_) : 0;
  }

  const std::vector<std::string>& damage() const { return damage_; }

 private:
  void add(const data::Outcome& outcome, ShardFacts& shard) {
    ++shard.made;
    if (const auto* dropped = std::get_if<data::Dropped>(&outcome)) {
      ++facts_.dropped[dropped->reason];
      return;
    }
    const auto& sample = std::get<data::Sample>(outcome);
    const auto length = std::ssize(sample.ids);
    const auto images = static_cast<std::int64_t>(sample.num_images());
    ++shard.kept;
    shard.single_image += sample.single_image;
    shard.tokens += length;
    tokens_ += length;
    images_ += images;
    facts_.most_tokens = std::max(facts_.most_tokens, length);
    facts_.most_images = std::max(facts_.most_images, images);
    for (const std::int32_t id : sample.ids)
      facts_.highest_id = std::max<std::int64_t>(facts_.highest_id, id);
  }

  // Usable samples or tokens of a shard, by those of it that were made.
  double content_of(const ShardFacts& shard) const {
    if (shard.made == 0) return 0;
    const double share = static_cast<double>(shard.seen) / static_cast<double>(shard.made);
    const bool tokens = facts_.source->info().counts_tokens;
    return share * (tokens ? static_cast<double>(shard.tokens) : usable_of(shard));
  }

  DataFacts& facts_;
  const data::SourceRules& rules_;
  std::int64_t tokens_ = 0, images_ = 0, single_image_ = 0, looked_at_bytes_ = 0;
  double least_ = 1e18;
  bool unknown_ = false, cut_ = false;
  std::vector<std::string> damage_;
};

// Of data that could not be looked at: its samples are as long as the rules let them be.
void assume_the_longest(DataFacts& facts, const DataConfig& config) {
  if (const auto& laion = config.block<data::LaionConfig>()) {
    facts.most_tokens = laion->max_tokens;
    facts.most_images = 1;
  } else if (const auto& mmc4 = config.block<data::Mmc4Config>()) {
    facts.most_tokens = mmc4->max_tokens;
    facts.most_images = mmc4->max_images;
  } else {
    facts.most_tokens = kUnknownTokens;
  }
  facts.mean_tokens = static_cast<double>(facts.most_tokens);
  facts.mean_images = static_cast<double>(facts.most_images);
}

std::string reasons_text(const std::map<std::string, std::int64_t>& dropped, bool damaged) {
  std::vector<std::string> parts;
  for (const auto& [reason, count] : dropped)
    if (data::is_damage(reason) == damaged) parts.push_back(str(reason, " ", count));
  return join(parts);
}

std::string one_decimal(double number) {
  char text[32];
  std::snprintf(text, sizeof text, number < 10 ? "%.1f" : "%.0f", number);
  return text;
}

}  // namespace

DataFacts look_at_data(const std::string& kind, const std::string& pattern,
                       const config::Value& block, const Reading& reading) {
  DataFacts facts;
  facts.kind = kind;
  facts.pattern = pattern;
  facts.source = data::find_source(kind);
  config::Map all;
  all[kind] = block;
  const DataConfig config = config::load<DataConfig>(config::Value(std::move(all))).config;
  image::TransformOptions options;
  options.size = reading.image_size;
  const image::Transform transform(options);
  const data::SourceRules rules =
      facts.source->rules(config, {*reading.tokenizer, reading.tokens, transform, config.rules});

  std::vector<std::string> there;
  for (const std::string& shard : data::expand_shards(pattern)) {
    ++facts.num_shards;
    std::error_code failed;
    const bool command = is_command(shard);
    facts.commands = facts.commands || command;
    if (!command && !fs::exists(shard, failed)) {
      facts.missing.push_back(facts.num_shards - 1);
      continue;
    }
    facts.bytes += size_of_file(shard);
    there.push_back(shard);
  }
  const bool all_of_them =
      !facts.commands && facts.bytes <= kReadAllBytes && there.size() <= kReadAllShards;
  const auto chosen = some_of(there.size(), all_of_them      ? there.size()
                                            : facts.commands ? 1
                                                             : kSomeShards);
  DataLook look(facts, rules);
  const auto share = static_cast<std::int64_t>(chosen.size());
  for (const std::size_t shard : chosen)
    look.at(there[shard], std::max<std::int64_t>(1, ceil_div(kMostMade, share)));
  facts.num_looked_at = chosen.size();
  look.finish();
  facts.damaged_shards = look.damage();

  if (facts.commands && facts.seen == 0) {
    facts.unseen = facts.damaged_shards.empty() ? "there is no sample in what it wrote"
                                                : facts.damaged_shards.front();
    facts.samples.reset();
    assume_the_longest(facts, config);
    return facts;
  }
  data::Counts counts;
  counts.samples = facts.made;
  counts.dropped.insert(facts.dropped.begin(), facts.dropped.end());
  counts.shards = static_cast<std::int64_t>(facts.num_looked_at);
  counts.bad_shards = std::ssize(facts.damaged_shards);
  require<ConfigError>(facts.kept > 0, "init: nothing of '", pattern,
                       "' can be used: ", data::why_unused(counts, kind));
  return facts;
}

std::string DataFacts::text() const {
  if (!source)
    return str(counted(num_files, "file"), ", ", counted(steps, "step"), " of ",
               join(sources, " and "), ", at most ", counted(step_tokens, "token"),
               step_images > 0 ? str(" and ", counted(step_images, "picture")) : "", " in one");
  std::string out = counted(static_cast<std::int64_t>(num_shards), "shard");
  if (bytes > 0) out += str(" (", format_bytes(bytes), ")");
  if (!unseen.empty()) return out + str(", which could not be looked at: ", unseen);
  const char* about = exact ? "" : "about ";
  if (samples)
    out += str(", ", num_looked_at + missing.size() < num_shards || made == 0 ? "about " : "",
               counted(*samples, "sample"));
  else
    out += str(", more than ", counted(seen, "sample"));
  out += str(", ", about, usable, samples ? " usable" : " usable of these");
  out += str(", ", one_decimal(mean_tokens), " tokens on average and ", most_tokens, " at most");
  if (most_images > 0)
    out += most_images == 1 ? std::string(", 1 picture each")
                            : str(", ", one_decimal(mean_images), " pictures on average and ",
                                  most_images, " at most");
  if (num_looked_at + missing.size() < num_shards)
    out += str("; by ", num_looked_at, " of the shards");
  if (made < seen)
    out += str(num_looked_at + missing.size() < num_shards ? " and " : "; by ", made,
               " of the samples");
  return out;
}

std::string DataFacts::left_out() const { return reasons_text(dropped, false); }

double DataFacts::damaged_share() const {
  const auto share = [](auto part, auto all) {
    return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0.0;
  };
  std::int64_t damaged = 0;
  for (const auto& [reason, count] : dropped) damaged += data::is_damage(reason) ? count : 0;
  return std::max(share(damaged, made),
                  share(missing.size(), num_shards) + share(damaged_shards.size(), num_looked_at));
}

std::vector<std::string> DataFacts::warnings() const {
  std::vector<std::string> all;
  if (!missing.empty())
    all.push_back(str(missing.size(), " of the ", num_shards, " shards of '", pattern,
                      missing.size() == 1 ? "' is not there; a run leaves it out"
                                          : "' are not there; a run leaves them out"));
  for (const std::string& damage : damaged_shards) all.push_back("a damaged shard: " + damage);
  if (!unseen.empty())
    all.push_back(str("'", pattern, "' could not be looked at: ", unseen,
                      "; batch size and number of steps are guesses"));
  if (const std::string damaged = reasons_text(dropped, true); !damaged.empty())
    all.push_back(str("of ", counted(made, "sample"), " of '", pattern, "' some are damaged: ",
                      damaged, "; a run leaves them out (floe inspect shows which they are)"));
  return all;
}

}  // namespace floe::starter
