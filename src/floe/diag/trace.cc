#include "floe/diag/trace.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/core/str.h"
#include "floe/io/atomic_file.h"
#include "floe/plan/strategy_options.h"

namespace floe::diag {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kUnitsTrack = 1, kCollectivesTrack = 2;

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
          {"args", {{"bytes", flight.bytes}, {"dtype", plan::name_of(flight.dtype)}}}};
}

}  // namespace

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

}  // namespace floe::diag
