// A sequence of shards as a stream of raw samples. A shard that is missing, truncated or damaged is
// reported and left; complete files before the damage count.
//
//   SampleReader reader([&] { return next_shard(); }, Rules::openflamingo, report);
//   while (auto raw = reader.next()) …
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "floe/data/grouping.h"
#include "floe/data/sample.h"

namespace floe {
class TarReader;
}

namespace floe::data {

class SampleReader {
 public:
  // The place of the next shard (as expand_shards gives them); nullopt: there is none.
  using NextShard = std::function<std::optional<std::string>()>;
  // Called once per shard that could not be read to its end.
  using OnDamage = std::function<void(const std::string& shard, const std::string& what)>;

  // Called for every file, also for those that belong to no sample.
  using OnFile =
      std::function<void(const std::string& shard, const std::string& name, std::size_t num_bytes)>;

  SampleReader(NextShard next_shard, Rules rules, OnDamage on_damage, OnFile on_file = {});
  ~SampleReader();

  // nullopt: all shards have been read. Blocks while a file or pipe is read.
  std::optional<RawSample> next();

 private:
  // The next sample that this shard completes; nullopt at its end.
  std::optional<RawSample> next_of_shard();

  NextShard next_shard_;
  OnDamage on_damage_;
  OnFile on_file_;
  Grouper grouper_;
  std::string shard_;
  std::unique_ptr<TarReader> tar_;
  bool ended_ = false;
};

}  // namespace floe::data
