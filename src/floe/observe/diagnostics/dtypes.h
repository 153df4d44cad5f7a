// Number types as they really are, against those that were configured.
//
//   check_dtypes(engine, optimizer, configured);       // in memory
//   CollectiveTypes types(configured);                 // in collectives
//   engine.add_observer(&types); ...; types.check();
#pragma once

#include <map>
#include <string>
#include <utility>

#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::diagnostics {

// Throws ShardError for the first group whose slice, parameters, gradient or optimizer state is not
// of the dtype that `configured` asks for (mixed_precision, frozen), and for such a buffer. What
// does not exist yet (a gradient) is passed over.
void check_dtypes(const shard::Engine& engine, const optim::Optimizer& optimizer,
                  const shard::ShardOptions& configured);

// What lies in memory now, a line for people.
std::string dtype_line(const shard::Engine& engine, const optim::Optimizer& optimizer);

// Looks at the tensors that are handed to collectives.
class CollectiveTypes final : public shard::Observer {
 public:
  explicit CollectiveTypes(const shard::ShardOptions& configured)
      : mixed_(configured.mixed_precision) {}

  void on(const shard::Event& event) override;
  // Throws ShardError for the first collective that had another dtype than configured. Apart from
  // `on`, so that no rank leaves in the middle of a pass.
  void check() const;
  // "in collectives: 36 all-gathers in bf16 (1.2 GiB), 4 gradient reductions in fp32 (16 MiB)"
  std::string line() const;

  struct Tally {
    std::int64_t count = 0, bytes = 0;
  };
  // By what is done and the dtype it is done in.
  const std::map<std::pair<std::string, c10::ScalarType>, Tally>& tallies() const {
    return tallies_;
  }

 private:
  shard::MixedPrecision mixed_;
  std::map<std::pair<std::string, c10::ScalarType>, Tally> tallies_;
  std::string problem_;  // the first
};

}  // namespace floe::diagnostics
