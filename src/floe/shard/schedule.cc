#include "floe/shard/schedule.h"

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
  const auto same_visit = [&](const Step& other) {
    return other.unit == step.unit && other.kind == step.kind;
  };
  const auto from =
      predicted.begin() + static_cast<std::ptrdiff_t>(std::min(cursor_, predicted.size()));
  const auto found = std::find_if(from, predicted.end(), same_visit);
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

}  // namespace floe::shard
