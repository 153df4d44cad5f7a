// Follows the memory of a rank's device through the steps of training: current and peak at the
// points of a batch, and whose memory it is.
//
//   MemoryWatch watch(engine, {&optimizer});
//   engine.add_observer(&watch);
//   watch.mark(MemoryPoint::batch_start); ... watch.mark(MemoryPoint::batch_end);
//   for (const PointMemory& at : watch.points()) ...
//
// Note [Peaks between boundaries]
// An allocator knows its peak, not whose memory it was. So the peak is read and reset at every
// boundary of a unit, too, together with the peaks of the engine's pools: what is left unexplained
// then is at most what one unit does inside itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::diagnostics {

// Where in a step memory is looked at.
enum class MemoryPoint {
  batch_start,
  after_forward,
  after_backward,
  before_optimizer_step,
  batch_end
};
const char* name_of(MemoryPoint point);

// Bytes on the device at a peak, by owner. Owners are measured between two boundaries of units, so
// they are those of the moment up to what a single unit does.
struct MemoryPeak {
  std::int64_t bytes = 0;        // all of it
  std::int64_t parameters = 0;   // slices
  std::int64_t optimizer = 0;    // state, and what an update takes beside it
  std::int64_t others = 0;       // also there between steps: averages, buffers, the batch
  std::int64_t gathered = 0;     // whole parameters of units
  std::int64_t gradients = 0;    // slices, and whole ones on their way to a reduction
  std::int64_t logits = 0;       // see Note [What counts as logits]
  std::int64_t activations = 0;  // the rest
  std::string where;             // "the backward of layers.3"
  std::string unit;              // "layers.3"; empty outside of units
  std::int64_t risen = 0;        // since the last boundary of a unit: what is there for a moment

  struct Part {
    std::string_view name;  // as above
    std::int64_t bytes = 0;
  };
  // Largest first.
  std::vector<Part> parts() const;
};

// What is known besides, for advice that fits.
struct PeakContext {
  std::int64_t logits_rows = 0, vocabulary = 0;
  // Class of the units that hold most of the activations; empty: what is outside of them does.
  std::string main_holder;
  enum class Checkpointed { none, some, all };
  Checkpointed checkpointed = Checkpointed::none;  // of those units
};

// "activations 62%, gathered 20%": the largest parts.
std::string peak_hint(const MemoryPeak& peak);
// The largest part, in words, and what makes it smaller.
std::string peak_advice(const MemoryPeak& peak, const PeakContext& context);

// The table of tokens: [size, width]; size 0: the model has none.
struct Vocabulary {
  std::int64_t size = 0, width = 0;
};
// The table with the most rows among modules whose class is some Embedding.
Vocabulary find_vocabulary(const torch::nn::Module& model);

// Note [What counts as logits]
// A tensor whose last dimension is the vocabulary, with its storage counted once and as long as it
// lives: the logits, their logarithms and gradients. Parameters do not count, nor does the
// transposed gradient of an output layer, [width, vocabulary]. A hidden layer that happens to be as
// wide as the vocabulary would count.

// How much memory the scores over the vocabulary take: every operator's outputs are looked at while
// a watch lives, so that no model has to say where its logits are. One watch at a time per thread;
// it sees this thread and the backward that it starts.
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

struct PointMemory {
  MemoryPoint point = MemoryPoint::batch_start;
  std::int64_t current_bytes = 0;
  MemoryPeak peak;  // since the point before
};

class MemoryWatch final : public shard::Observer {
 public:
  // The optimizers of all sets. Everything must outlive it. Resets the peaks of the device and of
  // the engine's pools as it goes.
  MemoryWatch(shard::Engine& engine, std::vector<optim::Optimizer*> optimizers);

  void on(const shard::Event& event) override;
  // batch_start begins a new batch.
  void mark(MemoryPoint point);

  // Of the batch under way or the last one, in the order they were first reached. A point that is
  // reached several times (accumulation, passes over several sources) has its largest values.
  const std::vector<PointMemory>& points() const { return points_; }
  // The largest of them.
  const PointMemory& largest() const;
  // "the peak of memory is 812 MiB, in the backward of head; 61% of it are logits …": of that one.
  std::string advice() const;

 private:
  // Reads everything, adds it to the interval under way and begins anew.
  void sample();
  std::string where() const;
  PeakContext context() const;

  shard::Engine& engine_;
  std::vector<optim::Optimizer*> optimizers_;
  c10::Device device_;
  bool slices_here_;  // on the device, not in host memory
  LogitsWatch logits_;

  struct Place {
    std::string unit;
    bool backward = false;
  };
  std::vector<Place> inside_;  // units under way, innermost last
  shard::PassPhase phase_ = shard::PassPhase::idle;
  std::int64_t between_steps_ = 0, parameters_ = 0, optimizer_bytes_ = 0;  // at batch_start
  std::int64_t reducing_bytes_ = 0;           // given to a reduction since the last sample, at most
  std::int64_t gradient_slices_ = 0;          // at the last sample
  std::int64_t current_ = 0;                  // on the device, at the last sample
  std::int64_t rest_ = 0;                     // of that, beyond the engine's own
  MemoryPeak peak_;                           // of the interval under way
  std::map<std::string, std::int64_t> kept_;  // by unit, in forward: for backward
  std::vector<PointMemory> points_;
};

}  // namespace floe::diagnostics
