// What torch is asked to compute while a test looks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace floe::test {

// `see` is told of each operator before it runs, on all threads, one at a time. One of these lives
// at once.
class TorchCalls {
 public:
  using See = std::function<void(const at::RecordFunction& call)>;
  explicit TorchCalls(See see) {
    see_ = std::move(see);
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
              const std::lock_guard lock(mutex_);
              see_(call);
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~TorchCalls() { at::removeCallback(handle_); }
  TorchCalls(const TorchCalls&) = delete;
  TorchCalls& operator=(const TorchCalls&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline See see_;
  at::CallbackHandle handle_;
};

// Copies of tensors, by how many elements they have.
class Copies {
 public:
  int of(std::int64_t numel) const {
    const auto found = counts_.find(numel);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  std::map<std::int64_t, int> counts_;
  TorchCalls calls_{[this](const at::RecordFunction& call) {
    if (std::string_view(call.name()) == "aten::copy_")
      counts_[call.inputs()[0].toTensor().numel()] += 1;
  }};
};

}  // namespace floe::test
