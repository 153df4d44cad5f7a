#include "floe/diag/logits_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "floe/core/error.h"
#include "floe/nn/module.h"

namespace floe::diag {
namespace {

// Callbacks are plain functions: they find the watch here.
LogitsWatch* current = nullptr;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction&) { return nullptr; }

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (current) current->see(function);
}

}  // namespace

Vocabulary find_vocabulary(const torch::nn::Module& model) {
  Vocabulary found;
  const auto look = [&found](const torch::nn::Module& module) {
    if (nn::class_name(module).find("Embedding") == std::string::npos) return;
    for (const at::Tensor& table : module.parameters(/*recurse=*/false))
      if (table.dim() == 2 && table.size(0) > found.size) found = {table.size(0), table.size(1)};
  };
  look(model);
  for (const auto& module : model.modules(/*include_self=*/false)) look(*module);
  return found;
}

LogitsWatch::LogitsWatch(const shard::Engine& engine)
    : vocabulary_(find_vocabulary(engine.model())) {
  for (const auto& group : engine.groups()) {
    parameters_.insert(group->storage());
    parameters_.insert(group->shard().storage().unsafeGetStorageImpl());
  }
  if (vocabulary_.size == 0) return;
  require(current == nullptr, "there is a LogitsWatch already");
  current = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

LogitsWatch::~LogitsWatch() {
  if (current != this) return;
  at::removeCallback(callback_);
  current = nullptr;
}

void LogitsWatch::see(const at::RecordFunction& function) {
  for (const c10::IValue& output : function.outputs()) {
    if (output.isTensor()) {
      see(output.toTensor());
    } else if (output.isTensorList()) {
      for (const at::Tensor& tensor : output.toTensorVector()) see(tensor);
    }
  }
}

void LogitsWatch::see(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.dim() < 2 ||
      tensor.size(-1) != vocabulary_.size)
    return;
  if (tensor.dim() == 2 && tensor.size(0) == vocabulary_.width) return;
  const c10::Storage& storage = tensor.storage();
  if (parameters_.contains(storage.unsafeGetStorageImpl())) return;
  const std::scoped_lock lock(mutex_);
  const std::int64_t live = live_bytes();
  const bool known = std::any_of(live_.begin(), live_.end(), [&](const auto& weak) {
    return weak._unsafe_get_target() == storage.unsafeGetStorageImpl();
  });
  if (!known) live_.push_back(storage.getWeakStorageImpl());
  peak_bytes_ =
      std::max(peak_bytes_, live + (known ? 0 : static_cast<std::int64_t>(storage.nbytes())));
  most_rows_ = std::max(most_rows_, tensor.numel() / vocabulary_.size);
}

std::int64_t LogitsWatch::live_bytes() {
  std::erase_if(live_, [](const auto& weak) { return weak.expired(); });
  std::int64_t bytes = 0;
  for (const auto& weak : live_)
    if (const auto storage = weak.lock()) bytes += static_cast<std::int64_t>(storage->nbytes());
  return bytes;
}

std::int64_t LogitsWatch::take_peak_bytes() {
  const std::scoped_lock lock(mutex_);
  const std::int64_t live = live_bytes();
  return std::exchange(peak_bytes_, live);
}

}  // namespace floe::diag
