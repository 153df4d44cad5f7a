#include "floe/shard/pass/collective_hash.h"

#include <string_view>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/core/str.h"

namespace floe::shard {

void CollectiveHash::add(const char* kind, std::size_t group_id, const std::string& group,
                         std::int64_t bytes) {
  hash_.add(std::string_view(kind)).add(group_id).add(static_cast<std::uint64_t>(bytes));
  const Entry entry{kind, group_id, &group, bytes};
  recent_[count_ % kRecent] = entry;
  count_ += 1;
  if (log_) log_->push_back(entry);
}

std::array<double, CollectiveHash::kWords> CollectiveHash::words() const {
  std::array<double, kWords> result{};
  for (std::size_t part = 0; part < kWords / 2; ++part) {
    const auto x = static_cast<double>((hash_.value() >> (16 * part)) & 0xffff);
    result[2 * part] = x;
    result[2 * part + 1] = x * x;
  }
  return result;
}

bool CollectiveHash::agrees(const double* sums, int ranks) {
  for (std::size_t part = 0; part < kWords / 2; ++part)
    if (sums[2 * part] * sums[2 * part] != sums[2 * part + 1] * ranks) return false;
  return true;
}

std::string CollectiveHash::recent() const {
  std::vector<std::string> lines;
  for (std::uint64_t n = count_ > kRecent ? count_ - kRecent : 0; n < count_; ++n) {
    const Entry& entry = recent_[n % kRecent];
    lines.push_back(
        str("#", n + 1, " ", entry.kind, " ", *entry.group, " (", format_bytes(entry.bytes), ")"));
  }
  return join(lines);
}

}  // namespace floe::shard
