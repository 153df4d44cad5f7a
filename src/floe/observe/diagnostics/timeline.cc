#include "floe/observe/diagnostics/timeline.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "floe/core/str.h"
#include "floe/io/file/file.h"
#include "floe/strategy/strategy_options.h"

namespace floe::diagnostics {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kUnitsTrack = 1, kCollectivesTrack = 2;

bool is_reduction(shard::Event::Kind kind) {
  return kind == shard::Event::Kind::reduce || kind == shard::Event::Kind::replicate;
}

Span::Kind forward_kind(const shard::Event& event) {
  return event.phase == shard::PassPhase::backward ? Span::Kind::recompute : Span::Kind::forward;
}

// A wait of a unit is for a gather, one of nobody for a reduction.
Span::Kind wait_kind(const shard::Event& event) {
  return event.unit.empty() ? Span::Kind::reduce_wait : Span::Kind::gather_wait;
}

Json name_event(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

std::string label_of(const Span& span) {
  switch (span.kind) {
    case Span::Kind::step: return str("batch ", span.name);
    case Span::Kind::gather_wait:
    case Span::Kind::reduce_wait: return str(name_of(span.kind), " of ", span.group);
    default: return str(name_of(span.kind), " ", span.name);
  }
}

Json span_event(const Span& span, int rank) {
  return {{"ph", "X"},
          {"name", label_of(span)},
          {"cat", name_of(span.kind)},
          {"ts", span.begin_us},
          {"dur", span.end_us - span.begin_us},
          {"pid", rank},
          {"tid", kUnitsTrack}};
}

Json flight_event(const Flight& flight, const char* phase, double time_us, std::size_t id,
                  int rank) {
  return {{"ph", phase},
          {"name", str(shard::name_of(flight.kind), " ", flight.group)},
          {"cat", "collective"},
          {"id", id},
          {"ts", time_us},
          {"pid", rank},
          {"tid", kCollectivesTrack},
          {"args", {{"bytes", flight.bytes}, {"dtype", strategy::name_of(flight.dtype)}}}};
}

}  // namespace

std::size_t DeviceClock::now() {
  if (device_.is_cpu()) {
    host_.push_back(std::chrono::steady_clock::now());
    return host_.size() - 1;
  }
  // Events of the default kind of the backend keep times; torch's own default does not.
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(std::move(event));
  return events_.size() - 1;
}

bool DeviceClock::is_past(std::size_t moment) const {
  return device_.is_cpu() || events_[moment].query();
}

void DeviceClock::wait() const {
  if (!events_.empty()) events_.back().synchronize();
}

void DeviceClock::wait_at_most(std::chrono::milliseconds patience) const {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!events_.empty() && !events_.back().query() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

double DeviceClock::microseconds(std::size_t moment) const {
  if (device_.is_cpu())
    return std::chrono::duration<double, std::micro>(host_[moment] - host_.front()).count();
  if (moment == 0) return 0;
  return 1e3 * events_.front().elapsedTime(events_[moment]);
}

const char* name_of(Span::Kind kind) {
  switch (kind) {
    case Span::Kind::step: return "step";
    case Span::Kind::forward: return "forward";
    case Span::Kind::recompute: return "recompute";
    case Span::Kind::backward: return "backward";
    case Span::Kind::gather_wait: return "wait for gather";
    case Span::Kind::reduce_wait: return "wait for reduction";
  }
  return "?";
}

void Timeline::issue(const shard::Event& event) {
  OpenFlight& issued = in_flight_.emplace_back();
  issued.flight = {event.kind, std::string(event.group), event.bytes, event.dtype};
  issued.begin = clock_.now();
}

void Timeline::on(const shard::Event& event) {
  using Kind = shard::Event::Kind;
  switch (event.kind) {
    case Kind::begin_forward: open(forward_kind(event), event.unit); break;
    case Kind::end_forward: close(forward_kind(event), event.unit); break;
    case Kind::begin_backward: open(Span::Kind::backward, event.unit); break;
    case Kind::end_backward: close(Span::Kind::backward, event.unit); break;
    case Kind::begin_wait: open(wait_kind(event), event.unit, event.group); break;
    case Kind::wait:
      close(wait_kind(event), event.unit, event.group);
      land(event.unit.empty(), event.group);
      break;
    case Kind::gather:
    case Kind::prefetch:
    case Kind::reduce:
    case Kind::replicate: issue(event); break;
    case Kind::release: land(false, event.group); break;  // gathered ahead and never used
    case Kind::keep:
    case Kind::agree: break;
  }
}

void Timeline::begin_step(std::int64_t step) {
  open_.clear();
  in_flight_.clear();
  open(Span::Kind::step, std::to_string(step));
}

void Timeline::end_step() {
  if (!open_.empty()) close(Span::Kind::step, open_.front().span.name);
}

void Timeline::open(Span::Kind kind, std::string_view name, std::string_view group) {
  open_.push_back({{kind, std::string(name), std::string(group)}, clock_.now()});
}

void Timeline::close(Span::Kind kind, std::string_view name, std::string_view group) {
  const auto last = std::find_if(open_.rbegin(), open_.rend(), [&](const OpenSpan& open) {
    return open.span.kind == kind && open.span.name == name && open.span.group == group;
  });
  if (last == open_.rend()) return;
  const std::size_t now = clock_.now();
  const auto first = std::next(last).base();
  for (auto open = open_.end(); open != first;) {
    --open;
    spans_.push_back(std::move(open->span));
    span_times_.push_back({open->begin, now});
  }
  open_.erase(first, open_.end());
}

void Timeline::land(bool reductions, std::string_view group) {
  for (auto open = in_flight_.begin(); open != in_flight_.end();) {
    if (is_reduction(open->flight.kind) != reductions || open->flight.group != group) {
      ++open;
      continue;
    }
    flights_.push_back(std::move(open->flight));
    flight_times_.push_back({open->begin, clock_.now()});
    open = in_flight_.erase(open);
    if (reductions) return;  // a sum over copies has a wait of its own
  }
}

template <class T>
std::vector<T> Timeline::timed(const std::vector<T>& items,
                               const std::vector<Interval>& intervals) const {
  std::vector<T> timed;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!clock_.is_past(intervals[i].end)) continue;
    T item = items[i];
    item.begin_us = clock_.microseconds(intervals[i].begin);
    item.end_us = clock_.microseconds(intervals[i].end);
    timed.push_back(std::move(item));
  }
  return timed;
}

std::vector<Span> Timeline::spans() const { return timed(spans_, span_times_); }

std::vector<Flight> Timeline::flights() const { return timed(flights_, flight_times_); }

Json trace_json(const Timeline& timeline, int rank) {
  Json events = Json::array();
  events.push_back(name_event("process_name", rank, 0, str("rank ", rank)));
  events.push_back(name_event("thread_name", rank, kUnitsTrack, "units"));
  events.push_back(name_event("thread_name", rank, kCollectivesTrack, "collectives"));
  for (const Span& span : timeline.spans()) events.push_back(span_event(span, rank));
  std::size_t id = 0;
  for (const Flight& flight : timeline.flights()) {
    events.push_back(flight_event(flight, "b", flight.begin_us, id, rank));
    events.push_back(flight_event(flight, "e", flight.end_us, id, rank));
    id += 1;
  }
  return {{"displayTimeUnit", "ms"},
          {"otherData", {{"rank", rank}, {"clock", timeline.is_of_device() ? "device" : "host"}}},
          {"traceEvents", std::move(events)}};
}

std::string trace_path(const std::string& run_folder, int rank) {
  return str(run_folder, "/trace/rank_", rank, ".json");
}

void write_trace(const Timeline& timeline, const std::string& run_folder, int rank) {
  std::filesystem::create_directories(run_folder + "/trace");
  write_file_atomically(trace_path(run_folder, rank), trace_json(timeline, rank).dump());
}

}  // namespace floe::diagnostics
