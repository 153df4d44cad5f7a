#include "floe/shard/pass/operator_watch.h"

#include <algorithm>
#include <exception>

#include "floe/core/log.h"

namespace floe::shard {
namespace {

// Callbacks are plain functions: they find the watches here. One per engine that watches.
std::vector<OperatorWatch*>& watches() {
  static std::vector<OperatorWatch*> instance;
  return instance;
}

at::CallbackHandle callback = 0;  // while there are watches

thread_local bool inside = false;  // what gathering itself runs is not watched

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (inside) return nullptr;
  inside = true;
  try {
    for (OperatorWatch* watch : watches()) watch->touch(function);
  } catch (const std::exception& e) {
    // Exceptions do not leave a callback. The operator would read memory that is not there.
    log::error("gathering for operator ", function.name(), " failed: ", e.what());
    inside = false;
    std::terminate();
  }
  inside = false;
  return nullptr;
}

}  // namespace

OperatorWatch::OperatorWatch(const std::vector<std::unique_ptr<Unit>>& units) : units_(units) {
  for (const auto& unit : units) {
    if (unit->plan().slot) continue;
    for (const FlatGroup* group : unit->groups())
      if (!group->plan().in_place()) {
        unit_of_storage_[group->storage()] = unit->id();
        unit_of_storage_[group->released_storage()] = unit->id();
      }
  }
  watches().push_back(this);
  if (watches().size() == 1)
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_operator)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  std::erase(watches(), this);
  if (watches().empty()) at::removeCallback(callback);
}

void OperatorWatch::touch(const at::RecordFunction& function) {
  std::vector<std::size_t> touched;
  for (const c10::IValue& input : function.inputs()) find(input, touched);
  if (touched.empty()) return;
  for (const std::size_t id : touched) {
    if (std::find(gathered_.begin(), gathered_.end(), id) != gathered_.end()) continue;
    units_[id]->gather(units_[id]->all_groups());
    gathered_.push_back(id);
  }
  std::erase_if(gathered_, [&](std::size_t id) {
    if (std::find(touched.begin(), touched.end(), id) != touched.end()) return false;
    units_[id]->drop(units_[id]->all_groups());
    return true;
  });
}

void OperatorWatch::find(const c10::IValue& value, std::vector<std::size_t>& touched) const {
  if (value.isTensor()) {
    find(value.toTensor(), touched);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) find(tensor, touched);
  }
}

void OperatorWatch::find(const at::Tensor& tensor, std::vector<std::size_t>& touched) const {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto found = unit_of_storage_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == unit_of_storage_.end()) return;
  if (std::find(touched.begin(), touched.end(), found->second) == touched.end())
    touched.push_back(found->second);
}

void OperatorWatch::release_all() {
  for (const std::size_t id : gathered_) units_[id]->drop(units_[id]->all_groups());
  gathered_.clear();
}

}  // namespace floe::shard
