// The engine's part about passes that are replayed.
#include <algorithm>

#include "floe/core/error.h"
#include "floe/shard/engine.h"
#include "floe/shard/pass/agreement.h"
#include "floe/shard/pass/unit.h"

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

bool Engine::may_repeat() const {
  return !context_.measure_gradients && !arrivals_due_ &&
         std::all_of(context_.observers.begin(), context_.observers.end(),
                     [](const Observer* observer) { return observer->only_counts(); });
}

std::vector<std::int64_t> Engine::pass_key() const {
  std::vector<std::int64_t> key{gradient_sync_};
  for (const FlatGroup* group : active_) {
    const FlatGroup::GradientState state = group->gradient_state();
    key.push_back((state.arrived ? 1 : 0) | (state.reduced ? 2 : 0));
  }
  for (const Step& step : schedule_.last(Schedule::PassKind::train)) {
    key.push_back(static_cast<std::int64_t>(step.unit) * 4 + static_cast<std::int64_t>(step.kind));
    key.push_back(static_cast<std::int64_t>(step.groups));
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
      engine.context_.ledger.log_to(nullptr);
    }
  };
  {
    const Listening listening{*this, &log};
    add_observer(&log);
    context_.ledger.log_to(&record.collectives);
    pass();
  }
  require_idle("the end of a recorded pass");
  for (Event& event : record.events) event.seconds = 0;
  record.steps = schedule_.last(Schedule::PassKind::train);
  for (const FlatGroup* group : active_) record.gradients.push_back(group->gradient_state());
  return record;
}

void Engine::repeat_pass(const PassRecord& record) {
  require_idle("Engine::repeat_pass");
  require<ShardError>(
      context_.gradients_stay && record.gradients.size() == active_.size(),
      "a recorded pass is of another layout than the engine has now; record it anew");
  for (const Ledger::Entry& entry : record.collectives) context_.ledger.add(entry);
  for (std::size_t i = 0; i < active_.size(); ++i)
    active_[i]->set_gradient_state(record.gradients[i]);
  schedule_.passed(Schedule::PassKind::train, record.steps);
  for (const Event& event : record.events)
    for (Observer* observer : context_.observers) observer->on(event);
}

bool Engine::all_ranks_say(std::uint64_t word) {
  static const std::string kNobody;
  Ledger said;
  said.add("say", word, kNobody, 0);
  const auto words = said.words();
  const auto sums = sum_with_ledger({words.begin(), words.end()}, context_.ledger, *context_.world);
  return context_.world->backend() == comm::Backend::fake ||
         Ledger::agrees(sums.data(), context_.world->size());
}

}  // namespace floe::shard
