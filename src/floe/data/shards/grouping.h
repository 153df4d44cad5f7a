// Files of shards to raw samples, by WebDataset's rules (and the reference's change of them):
// - only regular files count (the tar reader sees to that); `__x__` and `__x__/…` are skipped, and
//   so are names without an extension;
// - the key is the path up to the first dot of the base name, the suffix is the rest in lower case;
// - neighbours with one key form a sample; a suffix seen twice starts the next sample.
// With the reference's rules a sample may go on in the next shard (keys are equal, suffixes
// differ); corrected rules end it with its shard.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "floe/data/sample.h"

namespace floe::data {

struct MemberName {
  std::string key, suffix;
};
// nullopt for names that belong to no sample.
std::optional<MemberName> split_member_name(std::string_view name);

// Feed it the files in order:
//   if (auto sample = grouper.add(shard, name, bytes)) use(*sample);
//   … at the end of each shard: grouper.end_shard(); at the end of all: grouper.finish()
class Grouper {
 public:
  explicit Grouper(Rules rules) : rules_(rules) {}

  // Returns the sample before this file when the file begins another one.
  std::optional<RawSample> add(const std::string& shard, std::string_view name, Bytes bytes);
  // Returns the open sample with corrected rules, and keeps it open with the reference's.
  std::optional<RawSample> end_shard();
  // Returns the open sample, if any.
  std::optional<RawSample> finish();

 private:
  std::optional<RawSample> close();

  Rules rules_;
  std::optional<RawSample> open_;
  bool hidden_ = false;     // the reference does not give samples with a field `__bad__`
  bool key_taken_ = false;  // … and a field `__key__` ends its sample
};

}  // namespace floe::data
