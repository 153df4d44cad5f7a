// A running hash of the collectives that this rank has issued, which ranks compare.
//
// Note [Agreement on order]
// Ranks that gather different units of equal size at the same time would silently compute with each
// other's weights. Every collective adds (kind, group, size) to a hash; the hash travels in the
// gradient-norm all-reduce in parts of 16 bits, as x and x². The sums over ranks show whether all
// parts are equal (their variance is zero exactly when they are), so every rank comes to the same
// verdict before anything is updated, at no extra collective.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "floe/core/hash.h"

namespace floe::shard {

class CollectiveHash {
 public:
  // `kind` and `group` must outlive the hash: this is called for every collective and copies
  // nothing.
  void add(const char* kind, std::size_t group_id, const std::string& group, std::int64_t bytes);
  struct Entry {
    const char* kind = nullptr;
    std::size_t group_id = 0;
    const std::string* group = nullptr;
    std::int64_t bytes = 0;
  };
  void add(const Entry& entry) { add(entry.kind, entry.group_id, *entry.group, entry.bytes); }
  // Everything that is added from now on goes into `log` as well; null: no longer.
  void log_to(std::vector<Entry>* log) { log_ = log; }

  std::uint64_t count() const { return count_; }
  std::uint64_t hash() const { return hash_.value(); }

  static constexpr std::size_t kWords = 8;
  // Four parts x and their squares, exact in a double.
  std::array<double, kWords> words() const;
  // Whether these sums over `ranks` ranks come from equal hashes.
  static bool agrees(const double* sums, int ranks);

  // "#57 gather layers.3 frozen (1.0 MiB)", oldest first: the last few.
  std::string recent() const;

 private:
  static constexpr std::size_t kRecent = 8;

  Hash64 hash_;
  std::uint64_t count_ = 0;
  std::array<Entry, kRecent> recent_;  // entry n lies at n % kRecent
  std::vector<Entry>* log_ = nullptr;
};

}  // namespace floe::shard
