#include "floe/diag/timeline.h"

#include <algorithm>
#include <utility>

namespace floe::diag {
namespace {

bool is_reduction(shard::Event::Kind kind) {
  return kind == shard::Event::Kind::reduce || kind == shard::Event::Kind::replicate;
}

Span::Kind forward_kind(const shard::Event& event) {
  return event.phase == shard::Phase::backward ? Span::Kind::recompute : Span::Kind::forward;
}

// A wait of a unit is for a gather, one of nobody for a reduction.
Span::Kind wait_kind(const shard::Event& event) {
  return event.unit.empty() ? Span::Kind::reduce_wait : Span::Kind::gather_wait;
}

}  // namespace

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

}  // namespace floe::diag
