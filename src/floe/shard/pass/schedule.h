// The order in which units are used, learnt from the last pass and used to look ahead.
//
// Note [Schedule]
// A pass is a forward with its backward, or a forward without gradients; the two kinds are learnt
// apart. While a pass runs it is recorded; the record of the last pass of the same kind is the
// prediction. A cursor follows the prediction. When a pass takes another way the cursor moves to
// the next place that fits, or there is no prediction until it does: then units are gathered when
// they are needed, later than they could be but never wrongly. All ranks see the same passes, so
// all predict, and prefetch, the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "floe/shard/plan/mask.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

struct Step {
  enum class Kind : std::uint8_t { forward, backward, leave };
  std::size_t unit = 0;
  Kind kind = Kind::forward;
  GroupMask groups;  // which of the unit's are needed; of `leave` none

  bool operator==(const Step&) const = default;
};

class Schedule {
 public:
  enum class PassKind { train, evaluate };

  bool open() const { return open_; }
  PassKind kind() const { return kind_; }
  void begin(PassKind kind);
  void record(const Step& step);
  // The pass is over; what was recorded predicts the next one.
  void end();
  // The pass broke off: it predicts nothing.
  void cancel() { open_ = on_track_ = false; }

  // A pass of that kind went by without being recorded here: it predicts the next one.
  void passed(PassKind kind, const std::vector<Step>& steps);

  // Whether the pass at hand began with this unit.
  bool begins_with(std::size_t unit) const {
    return !recorded_.empty() && recorded_.front().unit == unit;
  }

  // The predicted steps after the cursor; empty when there is no prediction.
  const Step* ahead_begin() const;
  const Step* ahead_end() const;

  // The last complete pass of that kind; empty before the first.
  const std::vector<Step>& last(PassKind kind) const { return predicted_[index(kind)]; }

 private:
  static std::size_t index(PassKind kind) { return kind == PassKind::train ? 0 : 1; }

  bool open_ = false;
  PassKind kind_ = PassKind::train;
  std::array<std::vector<Step>, 2> predicted_;
  std::vector<Step> recorded_;
  std::size_t cursor_ = 0;
  bool on_track_ = false;
};

// The way through a model that a rank without work of its own takes beside the others: the steps
// of the last forward without gradients, else of the last training pass's forward, else the units
// in registration order.
std::vector<Step> forward_steps(const Schedule& schedule, const ShardPlan& plan);

}  // namespace floe::shard
