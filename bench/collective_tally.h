// Bytes of the collectives that an engine issues, since the last take.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "floe/shard/engine.h"

namespace floe::bench {

class CollectiveTally final : public shard::Observer {
 public:
  explicit CollectiveTally(shard::Engine& engine) : engine_(engine) { engine.add_observer(this); }
  ~CollectiveTally() override { engine_.remove_observer(this); }
  CollectiveTally(const CollectiveTally&) = delete;
  CollectiveTally& operator=(const CollectiveTally&) = delete;

  void on(const shard::Event& event) override {
    using Kind = shard::Event::Kind;
    if (event.kind == Kind::gather || event.kind == Kind::prefetch) {
      gathers_ += 1;
      gathered_bytes_ += event.bytes;
    } else if (event.kind == Kind::reduce || event.kind == Kind::replicate) {
      reduces_ += 1;
      reduced_bytes_ += event.bytes;
    }
  }
  bool only_counts() const override { return true; }
  // Divided by a number of steps.
  nlohmann::json take(std::int64_t steps = 1) {
    nlohmann::json taken = {{"gathers", gathers_ / steps},
                            {"gathered_bytes", gathered_bytes_ / steps},
                            {"reduces", reduces_ / steps},
                            {"reduced_bytes", reduced_bytes_ / steps}};
    gathers_ = gathered_bytes_ = reduces_ = reduced_bytes_ = 0;
    return taken;
  }

 private:
  shard::Engine& engine_;
  std::int64_t gathers_ = 0, gathered_bytes_ = 0, reduces_ = 0, reduced_bytes_ = 0;
};

}  // namespace floe::bench
