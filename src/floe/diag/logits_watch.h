// How much memory the scores over the vocabulary take: every operator's outputs are looked at while a
// watch lives, so that no model has to say where its logits are.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "floe/shard/engine.h"

namespace floe::diag {

// The table of tokens: [size, width]; size 0: the model has none.
struct Vocabulary {
  std::int64_t size = 0, width = 0;
};
// The table with the most rows among modules whose class is some Embedding.
Vocabulary find_vocabulary(const torch::nn::Module& model);

// Note [What counts as logits]
// A tensor whose last dimension is the vocabulary, with its storage counted once and as long as it
// lives: the logits, their logarithms and gradients. Parameters do not count, nor does the transposed
// gradient of an output layer, [width, vocabulary]. A hidden layer that happens to be as wide as the
// vocabulary would count.
// One watch at a time per thread; it sees this thread and the backward that it starts.
class LogitsWatch {
 public:
  explicit LogitsWatch(const shard::Engine& engine);
  ~LogitsWatch();
  LogitsWatch(const LogitsWatch&) = delete;
  LogitsWatch& operator=(const LogitsWatch&) = delete;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // The most that lived at once since the last call; what lives now counts for the next.
  std::int64_t take_peak_bytes();
  // Rows of the largest tensor so far.
  std::int64_t most_rows() const { return most_rows_; }

  void see(const at::RecordFunction& function);

 private:
  void see(const at::Tensor& tensor);
  std::int64_t live_bytes();

  Vocabulary vocabulary_;
  std::set<const c10::StorageImpl*> parameters_;
  std::mutex mutex_;  // backward may run on another thread
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> live_;
  std::int64_t peak_bytes_ = 0, most_rows_ = 0;
  at::CallbackHandle callback_ = 0;
};

}  // namespace floe::diag
