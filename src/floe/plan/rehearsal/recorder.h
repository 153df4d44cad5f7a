// Listens to everything that a rehearsed step does and writes it down as a Trace.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "floe/kernels/rehearsal.h"
#include "floe/plan/rehearsal/meta_device.h"
#include "floe/plan/rehearsal/trace.h"
#include "floe/shard/observer.h"
#include "floe/shard/plan/plan.h"

namespace floe::plan {

// Pairs of tokens that attention inside of sequences looks at: by how many there are and how many
// tokens they have together, since on the meta device nobody can ask the offsets.
struct KnownSpans {
  std::int64_t spans = 0, tokens = 0;
  double pairs = 0;  // sum of squares of their lengths
};

class Recorder final : public DeviceListener, public kernels::Rehearsal, public shard::Observer {
 public:
  // Of a step on the CPU, or on a GPU.
  explicit Recorder(bool of_cpu);
  ~Recorder() override;

  // Who is told of collectives.
  comm::FakeListener collectives();
  void set_spans(KnownSpans spans) { spans_ = spans; }
  void set_units(const shard::ShardPlan& plan);
  // Where owners of memory are set as units begin and end.
  void set_memory(DeviceMemory* memory) { memory_ = memory; }

  // From now on steps are written down; `take` ends that.
  void begin();
  std::vector<TraceStep> take();

  int record(int stream) override;
  void block(int stream, int event) override;
  void pass(const char* what, std::int64_t bytes) override;
  void coded_product(std::int64_t m, std::int64_t n, std::int64_t k) override;
  void attention(const kernels::AttentionWork& work) override;
  bool of_cpu() const override { return of_cpu_; }
  void on(const shard::Event& event) override;

 private:
  struct Frame;
  static std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function);
  static void operator_ends(const at::RecordFunction& function, at::ObserverContext* context);

  void begins(const at::RecordFunction& function);
  void ends(const at::RecordFunction& function);
  void add(TraceStep step);
  comm::Work add_to_gloo(TraceStep step);
  void enter(std::string_view unit);
  void leave();
  int owner() const;

  bool of_cpu_;
  KnownSpans spans_;
  std::map<std::string, int, std::less<>> units_;
  DeviceMemory* memory_ = nullptr;
  bool recording_ = false, backward_ = false;
  int events_ = 0;
  std::vector<int> inside_;  // of units, innermost last
  std::vector<TraceStep> steps_;
  std::vector<Frame> frames_;  // of operators that are under way
  at::CallbackHandle handle_ = 0;
};

}  // namespace floe::plan
