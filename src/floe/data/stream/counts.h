// What became of everything a source has read.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace floe::data {

// A sample of a checkpoint's shuffle buffer that was not in its shard any more.
inline constexpr std::string_view kLostAtResume = "lost_at_resume";
// A shard that is missing, damaged or cut off, or whose pipe failed.
inline constexpr std::string_view kBadShardReason = "bad_shard";

// Damaged input, as against what the rules leave out on purpose (few pictures, below the
// threshold). Only damage counts towards data.max_bad_fraction.
bool is_damage(std::string_view reason);

struct Counts {
  std::int64_t samples = 0;    // read and looked at
  std::int64_t kept = 0;       // in batches, or in one that is being filled
  std::int64_t left_over = 0;  // kept, but too few for a batch at the end of a pass
  std::map<std::string, std::int64_t, std::less<>> dropped;  // by reason
  std::int64_t shards = 0, bad_shards = 0;  // opened; of these not readable to their end

  std::int64_t num_damaged() const;  // samples
  Counts& operator+=(const Counts& other);

  // "10000 samples read, 9700 used; left out by the rules: 250 (no_image 250); damaged: 50
  // (bad_image 50); 1 of 128 shards could not be read to its end"
  std::string text() const;

  nlohmann::json save() const;
  static Counts load(const nlohmann::json& saved);
};

// When nothing of a source could be used: what was left out and why, and what to do about it.
// "12 samples read, 0 used; …: documents need a member KEY.json; is this data of another source?"
std::string why_unused(const Counts& counts, std::string_view source);

// Whether so many of all are more than the share `most`, beyond chance: by four standard
// deviations, and at least 5; with `most` 0 one is too many.
bool too_many(std::int64_t bad, std::int64_t all, double most);

}  // namespace floe::data
