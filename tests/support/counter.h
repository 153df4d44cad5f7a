// Counts what an engine does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "floe/shard/observer.h"

namespace floe::test {

class CountingObserver : public shard::Observer {
 public:
  struct Tally {
    std::int64_t count = 0, bytes = 0;
  };
  void on(const shard::Event& event) override {
    auto& tally = tallies[event.kind];
    tally.count += 1;
    tally.bytes += event.bytes;
    log.push_back(std::string(shard::name_of(event.kind)) + " " + std::string(event.group));
  }
  void clear() {
    tallies.clear();
    log.clear();
  }
  Tally gathers() {
    const auto& a = tallies[shard::Event::Kind::gather];
    const auto& b = tallies[shard::Event::Kind::prefetch];
    return {a.count + b.count, a.bytes + b.bytes};
  }
  Tally of(shard::Event::Kind kind) { return tallies[kind]; }

  std::map<shard::Event::Kind, Tally> tallies;
  std::vector<std::string> log;
};

}  // namespace floe::test
