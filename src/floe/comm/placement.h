// Which ranks share a host and a device, as they said themselves when they met.
#pragma once

#include <string>
#include <vector>

#include "floe/control/control_plane.h"

namespace floe::comm {

class Placement {
 public:
  // `members` are all ranks, by rank, and must outlive it.
  Placement(const std::vector<control::Member>& members, int own_rank)
      : members_(members), own_(members[static_cast<std::size_t>(own_rank)]) {}

  // A line for each rank: "rank 4: h1 (10.0.0.7) cuda:0".
  std::vector<std::string> lines() const;

  bool on_own_host(int rank) const { return member(rank).host_id == own_.host_id; }
  bool on_own_device(int rank) const {
    return on_own_host(rank) && member(rank).device == own_.device;
  }
  // Of this rank's host, and of them those with its device; this one among them.
  int ranks_on_host() const;
  int ranks_on_device() const;
  // Whether no rank of this host has a lower number.
  bool is_first_on_host() const;

  // The ranks of each host; hosts in the order of their first rank.
  std::vector<std::vector<int>> hosts() const;
  // All ranks by host, so that neighbours are on one host as far as they can be: a launcher may
  // deal ranks out to hosts in turn.
  std::vector<int> by_host() const;
  // Whether, of rows of so many ranks of by_host(), each is on one host or made of whole hosts:
  // else a mesh would send between hosts what it is there to keep inside. The size divides the
  // number of ranks.
  bool rows_fit_hosts(int row_size) const;

 private:
  const control::Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  const std::vector<control::Member>& members_;
  const control::Member& own_;
};

}  // namespace floe::comm
