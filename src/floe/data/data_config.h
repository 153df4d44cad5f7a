// The block `data:`: what a run reads, and by which rules.
#pragma once

#include <any>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/data/sample.h"
#include "floe/schema/codec.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}
namespace data {
inline auto enum_names(Rules) {
  using enum Rules;
  return std::to_array<std::pair<std::string_view, Rules>>(
      {{"openflamingo", openflamingo}, {"corrected", corrected}});
}
}  // namespace data

// The buffer out of which samples are drawn at random; every source has one (its workers share it).
struct ShuffleConfig {
  std::int64_t samples = 5000;  // that it holds, of each worker
  std::int64_t initial = 1000;  // from which on it gives some
  config::ByteSize memory{kGiB};
};
void describe(config::Schema<ShuffleConfig>& s);

struct DataConfig {
  std::optional<std::string>
      batches;  // a safetensors file of prepared batches; {rank} is filled in
  data::Rules rules = data::Rules::openflamingo;
  bool resampled = false;    // shards are drawn with replacement
  std::int64_t workers = 1;  // logical streams of a source: part of the order
  std::int64_t threads = 4;  // that decode: never part of the order
  double max_bad_fraction = 0.05;
  ShuffleConfig shuffle;

  // The block of the source whose struct is C, such as data::LaionConfig; nothing: it is not read.
  template <class C>
  std::optional<C>& block() {
    std::any& held = blocks_[typeid(C)];
    if (!held.has_value()) held = std::optional<C>();
    return std::any_cast<std::optional<C>&>(held);
  }
  template <class C>
  const std::optional<C>& block() const {
    static const std::optional<C> kNone;
    const auto found = blocks_.find(typeid(C));
    return found == blocks_.end() ? kNone : std::any_cast<const std::optional<C>&>(found->second);
  }

  // The names of the sources in this block, in the order in which a step has them.
  std::vector<std::string> sources() const;

 private:
  std::map<std::type_index, std::any> blocks_;
};
void describe(config::Schema<DataConfig>& s);

// Batches that every rank gets of each source in an epoch; nullopt where the data has no end.
// Throws ConfigError when the sources disagree, and says which num_samples would do.
std::optional<std::int64_t> batches_per_epoch(const DataConfig& config, std::int64_t world);

}  // namespace floe
