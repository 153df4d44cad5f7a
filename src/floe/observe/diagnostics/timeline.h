// When units computed, what they waited for and which collectives were under way (timeline.cc), and
// where the time of a step goes by that (unit_times.cc).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/shard/observer.h"
#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {

// Moments on a rank's device: of the stream that computes on an accelerator, of the host on the
// CPU.
class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : device_(device) {}

  // The moment when everything that was given to the current stream so far is done. Does not wait.
  std::size_t now();
  // Whether the device is that far. Does not wait.
  bool is_past(std::size_t moment) const;
  // Waits until the device has reached the last moment.
  void wait() const;
  // The same, but not for longer than that: a device that hangs is given up.
  void wait_at_most(std::chrono::milliseconds patience) const;
  // Of a moment that is past, since the first one.
  double microseconds(std::size_t moment) const;
  bool is_of_device() const { return !device_.is_cpu(); }

 private:
  c10::Device device_;
  std::vector<std::chrono::steady_clock::time_point> host_;  // on the CPU
  std::vector<c10::Event> events_;                           // else
};

// Something that ran from `begin_us` to `end_us`. Spans of one timeline nest.
struct Span {
  enum class Kind {
    step,         // the whole of batch `name`
    forward,      // of unit `name`
    recompute,    // its forward once more, in backward
    backward,     // of unit `name`
    gather_wait,  // unit `name` waited for group `group`
    reduce_wait,  // group `group` was waited for
  };
  Kind kind = Kind::step;
  std::string name, group;
  double begin_us = 0, end_us = 0;
};
const char* name_of(Span::Kind kind);

// A collective from its issue to the moment when the computation had its result. These overlap.
struct Flight {
  shard::Event::Kind kind = shard::Event::Kind::gather;
  std::string group;
  std::int64_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  double begin_us = 0, end_us = 0;
};

class Timeline final : public shard::Observer {
 public:
  explicit Timeline(c10::Device device) : clock_(device) { clock_.now(); }

  void on(const shard::Event& event) override;
  void begin_step(std::int64_t step);
  void end_step();

  // Waits until the device is as far as the host.
  void wait() const { clock_.wait(); }
  void wait_at_most(std::chrono::milliseconds patience) const { clock_.wait_at_most(patience); }
  // What has ended so far, in the order of its end. These do not wait: in a run that failed the
  // device may never get further. What it has not finished is left out.
  std::vector<Span> spans() const;
  std::vector<Flight> flights() const;
  bool is_of_device() const { return clock_.is_of_device(); }

 private:
  // With moments of the clock instead of times.
  struct Interval {
    std::size_t begin = 0, end = 0;
  };
  struct OpenSpan {
    Span span;
    std::size_t begin = 0;
  };
  struct OpenFlight {
    Flight flight;
    std::size_t begin = 0;
  };

  void issue(const shard::Event& event);
  void open(Span::Kind kind, std::string_view name, std::string_view group = {});
  // Ends the innermost such span, and what is still open inside it.
  void close(Span::Kind kind, std::string_view name, std::string_view group = {});
  void land(bool reductions, std::string_view group);
  template <class T>
  std::vector<T> timed(const std::vector<T>& items, const std::vector<Interval>& intervals) const;

  DeviceClock clock_;
  std::vector<OpenSpan> open_;  // innermost last
  std::vector<OpenFlight> in_flight_;
  std::vector<Span> spans_;
  std::vector<Interval> span_times_;
  std::vector<Flight> flights_;
  std::vector<Interval> flight_times_;
};

// A timeline in the format of chrome://tracing and ui.perfetto.dev: units, waits and steps nest on
// one track; collectives, which overlap, are asynchronous events.
nlohmann::ordered_json trace_json(const Timeline& timeline, int rank);

// RUN/trace/rank_R.json; makes the folder.
std::string trace_path(const std::string& run_folder, int rank);
void write_trace(const Timeline& timeline, const std::string& run_folder, int rank);

// Where the time of a step goes in one unit, in seconds. Units inside a unit and waits are not part
// of its forward and backward.
struct UnitTime {
  std::string unit, class_name;
  double gather_wait_s = 0;  // until its parameters were whole
  double forward_s = 0;
  double backward_s = 0;     // with what is computed again
  double reduce_wait_s = 0;  // until the gradients of its groups were reduced
  double total_s() const { return gather_wait_s + forward_s + backward_s + reduce_wait_s; }
};

struct StepTimes {
  std::int64_t num_steps = 0;
  double step_s = 0;            // mean
  std::vector<UnitTime> units;  // longest first

  double gather_wait_s() const;
  double compute_s() const;
  double reduce_wait_s() const;
};

// Without the first step where there are others: it is slower, because the engine does not know the
// order of units yet and memory is taken for the first time.
std::vector<Span> without_first_step(std::vector<Span> spans);

// Of all steps that the spans contain.
StepTimes step_times(const std::vector<Span>& spans, const shard::ShardPlan& plan);

// A table of the `top_k` longest units, and a sentence where waits take a large part.
std::vector<std::string> time_lines(const StepTimes& times, std::size_t top_k, bool of_device);

// [{"unit", "class", "gather_wait_s", "forward_s", "backward_s", "reduce_wait_s"}], longest first.
nlohmann::ordered_json times_json(const StepTimes& times);

}  // namespace floe::diagnostics
