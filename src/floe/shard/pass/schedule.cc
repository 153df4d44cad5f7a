#include "floe/shard/pass/schedule.h"

#include <algorithm>

namespace floe::shard {

void Schedule::begin(PassKind kind) {
  open_ = true;
  kind_ = kind;
  recorded_.clear();
  cursor_ = 0;
  on_track_ = !predicted_[index(kind)].empty();
}

void Schedule::record(const Step& step) {
  recorded_.push_back(step);
  const auto& predicted = predicted_[index(kind_)];
  const auto same_place = [&](const Step& other) {
    return other.unit == step.unit && other.kind == step.kind;
  };
  const auto from =
      predicted.begin() + static_cast<std::ptrdiff_t>(std::min(cursor_, predicted.size()));
  const auto found = std::find_if(from, predicted.end(), same_place);
  on_track_ = found != predicted.end();
  if (on_track_) cursor_ = static_cast<std::size_t>(found - predicted.begin()) + 1;
}

void Schedule::end() {
  open_ = false;
  on_track_ = false;
  auto& predicted = predicted_[index(kind_)];
  if (predicted != recorded_) predicted = recorded_;
}

void Schedule::passed(PassKind kind, const std::vector<Step>& steps) {
  auto& predicted = predicted_[index(kind)];
  if (predicted != steps) predicted = steps;
}

const Step* Schedule::ahead_begin() const {
  return on_track_ ? predicted_[index(kind_)].data() + cursor_ : nullptr;
}
const Step* Schedule::ahead_end() const {
  const auto& predicted = predicted_[index(kind_)];
  return on_track_ ? predicted.data() + predicted.size() : nullptr;
}

std::vector<Step> forward_steps(const Schedule& schedule, const ShardPlan& plan) {
  const bool root_is_seen = plan.units.back().slot != nullptr;
  const auto& evaluated = schedule.last(Schedule::PassKind::evaluate);
  if (!evaluated.empty() && root_is_seen) return evaluated;
  const auto& trained = schedule.last(Schedule::PassKind::train);
  const auto turn = std::find_if(trained.begin(), trained.end(), [](const Step& step) {
    return step.kind == Step::Kind::backward;
  });
  if (turn != trained.begin() && turn != trained.end()) return {trained.begin(), turn};

  std::vector<Step> steps;
  std::vector<std::size_t> open;
  const auto enter = [&](std::size_t u) {
    steps.push_back({u, Step::Kind::forward, GroupMask::all(plan.units[u].groups.size())});
  };
  const auto leave = [&](std::size_t u) { steps.push_back({u, Step::Kind::leave, {}}); };
  const std::size_t root = plan.units.size() - 1;
  enter(root);
  for (std::size_t u = 0; u < root; ++u) {
    while (!open.empty() && !plan.units[u].name.starts_with(plan.units[open.back()].name + ".")) {
      leave(open.back());
      open.pop_back();
    }
    enter(u);
    open.push_back(u);
  }
  for (; !open.empty(); open.pop_back()) leave(open.back());
  leave(root);
  return steps;
}

}  // namespace floe::shard
