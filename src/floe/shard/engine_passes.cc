// The engine's part about passes that are replayed.
#include <algorithm>

#include "floe/core/error.h"
#include "floe/shard/engine_state.h"
#include "floe/shard/pass/agreement.h"
#include "floe/shard/pass/pass_record.h"

namespace floe::shard {
namespace {

class EventLog final : public Observer {
 public:
  explicit EventLog(std::vector<Event>& events) : events_(events) {}
  void on(const Event& event) override { events_.push_back(event); }
  bool only_counts() const override { return true; }

 private:
  std::vector<Event>& events_;
};

}  // namespace

void Engine::keep_gradients_in_place() { state_->context.gradients_stay = true; }

std::uint64_t Engine::layout_number() const { return state_->layout_number; }

bool Engine::may_repeat() const {
  return !state_->context.measure_gradients && !state_->runner->owners_wait() &&
         std::all_of(state_->context.observers.begin(), state_->context.observers.end(),
                     [](const Observer* observer) { return observer->only_counts(); });
}

std::vector<std::int64_t> Engine::pass_key() const {
  std::vector<std::int64_t> key{state_->runner->gradient_sync()};
  for (const FlatGroup* group : state_->active)
    key.push_back(static_cast<std::int64_t>(group->gradients().state()));
  for (const Step& step : state_->runner->schedule().last(Schedule::PassKind::train)) {
    key.push_back(static_cast<std::int64_t>(step.unit) * 4 + static_cast<std::int64_t>(step.kind));
    key.push_back(static_cast<std::int64_t>(step.groups.bits()));
  }
  return key;
}

PassRecord Engine::record_pass(const std::function<void()>& pass) {
  require_idle("Engine::record_pass");
  PassRecord record;
  EventLog log(record.events);
  struct Listening {
    Engine& engine;
    Observer* log;
    ~Listening() {
      engine.remove_observer(log);
      engine.state_->context.collectives.log_to(nullptr);
    }
  };
  {
    const Listening listening{*this, &log};
    add_observer(&log);
    state_->context.collectives.log_to(&record.collectives);
    pass();
  }
  require_idle("the end of a recorded pass");
  for (Event& event : record.events) event.seconds = 0;
  record.steps = state_->runner->schedule().last(Schedule::PassKind::train);
  for (const FlatGroup* group : state_->active)
    record.gradients.push_back(group->gradients().state());
  return record;
}

void Engine::repeat_pass(const PassRecord& record) {
  require_idle("Engine::repeat_pass");
  require<ShardError>(
      state_->context.gradients_stay && record.gradients.size() == state_->active.size(),
      "a recorded pass is of another layout than the engine has now; record it anew");
  for (const CollectiveHash::Entry& entry : record.collectives)
    state_->context.collectives.add(entry);
  for (std::size_t i = 0; i < state_->active.size(); ++i)
    state_->active[i]->gradients().restore(record.gradients[i]);
  state_->runner->schedule().passed(Schedule::PassKind::train, record.steps);
  for (const Event& event : record.events)
    for (Observer* observer : state_->context.observers) observer->on(event);
}

void Engine::verify_copies() const {
  std::vector<HeldCopy> copies;
  for (const auto& group : state_->groups)
    if (group->plan().replicas > 1)
      copies.push_back({group->name(), group->shard_rank(), group->values()});
  compare_copies(copies, *state_->context.world);
}

bool Engine::ranks_agree(std::uint64_t word) {
  static const std::string kNobody;
  CollectiveHash own;
  own.add("word", word, kNobody, 0);
  const auto words = own.words();
  const auto sums = sum_and_compare({words.begin(), words.end()}, state_->context.collectives,
                                    *state_->context.world);
  return state_->context.world->backend() == comm::Backend::fake ||
         CollectiveHash::agrees(sums.data(), state_->context.world->size());
}

}  // namespace floe::shard
