#include "floe/comm/placement.h"

#include <algorithm>
#include <map>

#include "floe/core/str.h"

namespace floe::comm {

std::vector<std::string> Placement::lines() const {
  std::vector<std::string> lines;
  for (const control::Member& member : members_)
    lines.push_back(str("rank ", member.rank, ": ", member.host, " ",
                        member.address.empty() ? "" : str("(", member.address, ") "),
                        member.device));
  return lines;
}

int Placement::ranks_on_host() const {
  return static_cast<int>(
      std::count_if(members_.begin(), members_.end(),
                    [&](const control::Member& other) { return on_own_host(other.rank); }));
}

int Placement::ranks_on_device() const {
  return static_cast<int>(
      std::count_if(members_.begin(), members_.end(),
                    [&](const control::Member& other) { return on_own_device(other.rank); }));
}

bool Placement::is_first_on_host() const {
  return std::none_of(members_.begin(), members_.begin() + own_.rank,
                      [&](const control::Member& other) { return on_own_host(other.rank); });
}

std::vector<std::vector<int>> Placement::hosts() const {
  std::map<std::string, std::size_t> known;
  std::vector<std::vector<int>> hosts;
  for (const control::Member& member : members_) {
    const auto [host, is_new] = known.emplace(member.host_id, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[host->second].push_back(member.rank);
  }
  return hosts;
}

std::vector<int> Placement::by_host() const {
  std::vector<int> ranks;
  for (const std::vector<int>& host : hosts()) ranks.insert(ranks.end(), host.begin(), host.end());
  return ranks;
}

bool Placement::rows_fit_hosts(int row_size) const {
  int begin = 0;
  for (const std::vector<int>& host : hosts()) {
    const int end = begin + static_cast<int>(host.size());
    const bool in_one_row = begin / row_size == (end - 1) / row_size;
    const bool of_whole_rows = begin % row_size == 0 && end % row_size == 0;
    if (!in_one_row && !of_whole_rows) return false;
    begin = end;
  }
  return true;
}

}  // namespace floe::comm
