// The block `checkpoint:`: when a run saves, what, and what stays on disk.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "floe/schema/codec.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}
namespace checkpoint {

// What a checkpoint is on disk.
enum class Layout {
  sharded,    // a directory of torch.distributed.checkpoint, written by all ranks
  full,       // one file of torch.save with everything, written by rank 0
  trainable,  // checkpoint_N.pt as OpenFlamingo writes it
};
inline auto enum_names(Layout) {
  using enum Layout;
  return std::to_array<std::pair<std::string_view, Layout>>(
      {{"sharded", sharded}, {"full", full}, {"trainable", trainable}});
}

// Which parameters it has.
enum class Content {
  trainable,  // those that train; the frozen base is named and checked
  full,       // all
};
inline auto enum_names(Content) {
  using enum Content;
  return std::to_array<std::pair<std::string_view, Content>>(
      {{"trainable", trainable}, {"full", full}});
}

// What a save that failed (a full disk) means for the run.
enum class OnFailure {
  stop,          // the run ends with the error
  keep_running,  // it is logged and training goes on; the older checkpoints stay
};
inline auto enum_names(OnFailure) {
  using enum OnFailure;
  return std::to_array<std::pair<std::string_view, OnFailure>>(
      {{"stop", stop}, {"continue", keep_running}});
}

// Which way a metric is better.
enum class Better { lower, higher };
inline auto enum_names(Better) {
  using enum Better;
  return std::to_array<std::pair<std::string_view, Better>>({{"lower", lower}, {"higher", higher}});
}

}  // namespace checkpoint

struct KeepBestConfig {
  std::optional<std::string> metric;  // of those that were passed to the save
  std::int64_t n = 0;
  checkpoint::Better better = checkpoint::Better::lower;
};
void describe(config::Schema<KeepBestConfig>& s);

struct CheckpointConfig {
  std::optional<std::int64_t> every_steps = 1000;
  std::optional<std::int64_t> every_epochs;
  std::optional<std::int64_t> keep = 2;  // newest ones; null: all
  KeepBestConfig keep_best;
  bool delete_previous_checkpoint = false;  // OpenFlamingo's name for keep: 1
  checkpoint::Layout state_dict_type = checkpoint::Layout::sharded;
  checkpoint::Content content = checkpoint::Content::trainable;
  bool async = true;
  bool on_exception = true;
  checkpoint::OnFailure on_failure = checkpoint::OnFailure::stop;

  // How many of the newest stay, after both ways to say it.
  std::optional<std::int64_t> newest_kept() const {
    return delete_previous_checkpoint ? std::optional<std::int64_t>(1) : keep;
  }
};
void describe(config::Schema<CheckpointConfig>& s);

}  // namespace floe
