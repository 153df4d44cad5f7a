// What is in the data that a run shall learn from: which source it is for, how many samples it has
// and how long they are. Shards are walked and samples made by the code that training runs, without
// shuffling and coins.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/data/sources/source.h"
#include "floe/schema/value.h"
#include "floe/token/tokenizer.h"

namespace floe::starter {

// What `--data` says: a kind, where it is given, and a pattern.
struct DataWord {
  std::string kind;     // "laion", "batches"; empty: to be seen
  std::string pattern;  // as the configuration has it: a folder has become a pattern of its files
};

// "mmc4=PATTERN", a pattern, or a folder of shards. Throws ConfigError for a folder without data,
// or with two kinds of it.
DataWord parse_data_word(const std::string& word);

// Looks at the first samples. Throws ConfigError, with what is there and what floe reads, when they
// are of no source.
std::string kind_of_data(const std::string& pattern);

// What samples are made with.
struct Reading {
  const token::Tokenizer* tokenizer = nullptr;
  token::FlamingoTokens tokens;
  int image_size = 224;
};

// Of a source's files, or of a file of prepared batches.
struct DataFacts {
  std::string kind;
  std::string pattern;
  const data::DataSource* source = nullptr;  // null: prepared batches

  std::size_t num_shards = 0, num_looked_at = 0;
  std::vector<std::size_t> missing;         // by their places in the list
  std::int64_t bytes = 0;                   // of the shards that are files
  bool commands = false;                    // some shards are what commands write
  std::string unseen;                       // why nothing could be looked at; empty: something was
  std::vector<std::string> damaged_shards;  // why each could not be read to its end

  std::int64_t seen = 0;                        // samples in the shards that were looked at
  std::int64_t made = 0;                        // of these: decoded and tokenised
  std::int64_t kept = 0;                        // of these: usable
  std::map<std::string, std::int64_t> dropped;  // the others, by reason
  double mean_tokens = 0, mean_images = 0;      // of a usable sample
  std::int64_t most_tokens = 0, most_images = 0;
  std::int64_t highest_id = 0;  // of all tokens
  bool exact = false;           // every sample was made; otherwise the next ones are estimates
  std::optional<std::int64_t> samples;  // in all shards; null: there is no telling
  std::int64_t usable = 0;              // of them
  // Usable samples, or tokens where batches count tokens, of the shard that has fewest.
  std::int64_t least_in_shard = 0;

  // Of prepared batches: steps of the file, files of ranks, and what a step holds.
  std::int64_t steps = 0, num_files = 0, step_tokens = 0, step_images = 0;
  bool with_images = false;
  std::vector<std::string> sources;

  // "5 shards, 60 samples, 58 usable, 12 tokens on average and 20 at most, 1 picture each"
  std::string text() const;
  // "few_images 4, no_image 4": what the rules leave out of the samples that were made.
  std::string left_out() const;
  // Of the samples that were made, or of the shards, the share that is damaged or not there.
  double damaged_share() const;
  // What should be said aloud: missing and damaged shards, damaged samples.
  std::vector<std::string> warnings() const;
};

// `block`: of the source, as the configuration will have it. Throws ConfigError when no sample is
// usable.
DataFacts look_at_data(const std::string& kind, const std::string& pattern,
                       const config::Value& block, const Reading& reading);

// Of data.batches; {rank} in the path is filled in.
DataFacts look_at_batches(const std::string& path);

}  // namespace floe::starter
