#include "floe/observe/diagnostics/run_diagnostics.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/io/file/file.h"
#include "floe/observe/diagnostics/dtypes.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/observe/diagnostics/timeline.h"
#include "floe/observe/diagnostics/unit_tree.h"
#include "floe/schema/schema.h"
#include "floe/strategy/strategy_options.h"

namespace floe {

void describe(config::Schema<DiagnosticsConfig>& s) {
  using C = DiagnosticsConfig;
  s.field("batches", &C::batches, "First batches whose memory is looked at point by point")
      .at_least(0);
  s.field("tree_top_k", &C::tree_top_k, "Units that are named in the summary of the tree")
      .at_least(1);
  s.field("to_loggers", &C::to_loggers, "Write the numbers to the loggers as well");
  s.field("trace_steps", &C::trace_steps,
          "First steps that are traced into RUN/trace for Perfetto; null: none")
      .at_least(1);
}

}  // namespace floe

namespace floe::diagnostics {
namespace {

using Json = nlohmann::ordered_json;
using Numbers = std::vector<std::pair<std::string, double>>;

// For what another rank published long before.
constexpr std::chrono::milliseconds kPatience{200};

std::string memory_key(int rank) { return str("diagnostics/memory/", rank); }

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / kMiB; }

// What has been found so far, as RUN/diagnostics.json keeps it for `floe report`. Each key is
// always there; see docs/diagnostics.md.
struct Findings {
  std::vector<std::string> strategy;  // lines
  std::vector<std::string> notes;     // sentences
  std::vector<RankBytes> ranks;
  Json units = Json::array();
  Json memory = Json::array();
  Json times = Json::array();

  void add_memory(std::int64_t batch, int rank, const std::vector<PointMemory>& points);
  // A sentence that is there already is not said twice.
  void add_note(const std::string& note);

  // A sentence when the peak of some rank is more than a tenth above that of another; else empty.
  std::string uneven_memory() const;

  Json json() const;
  // The file appears whole or not at all.
  void write(const std::string& path) const;
};

void Findings::add_memory(std::int64_t batch, int rank, const std::vector<PointMemory>& points) {
  for (const PointMemory& at : points)
    memory.push_back({{"batch", batch},
                      {"point", name_of(at.point)},
                      {"rank", rank},
                      {"current_bytes", at.current_bytes},
                      {"peak_bytes", at.peak.bytes},
                      {"hint", peak_hint(at.peak)}});
}

void Findings::add_note(const std::string& note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

std::string Findings::uneven_memory() const {
  std::map<int, std::int64_t> peaks;
  for (const Json& at : memory) {
    std::int64_t& peak = peaks[at.at("rank").get<int>()];
    peak = std::max(peak, at.at("peak_bytes").get<std::int64_t>());
  }
  if (peaks.empty()) return "";
  const auto [least, most] = std::minmax_element(
      peaks.begin(), peaks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (10 * most->second <= 11 * least->second) return "";
  return str("ranks differ in memory: rank ", most->first, " peaks at ", format_bytes(most->second),
             ", rank ", least->first, " at ", format_bytes(least->second),
             "; their batches differ in tokens or images, and the largest one decides what fits");
}

Json Findings::json() const {
  Json by_rank = Json::array();
  for (const RankBytes& bytes : ranks)
    by_rank.push_back({{"rank", bytes.rank},
                       {"trainable_bytes", bytes.trainable_bytes},
                       {"frozen_bytes", bytes.frozen_bytes},
                       {"padding_bytes", bytes.padding_bytes}});
  return {{"strategy", strategy}, {"units", units}, {"ranks", std::move(by_rank)},
          {"memory", memory},     {"notes", notes}, {"times", times}};
}

void Findings::write(const std::string& path) const {
  write_file_atomically(path, json().dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

// A table of one batch.
std::vector<std::string> memory_lines(std::int64_t batch, const std::vector<PointMemory>& points) {
  using enum Align;
  Table table({left, right, right, left}, 2);
  table.row({str("batch ", batch), "now", "peak", "of the peak"});
  for (const PointMemory& at : points)
    table.row({name_of(at.point), format_bytes(at.current_bytes), format_bytes(at.peak.bytes),
               peak_hint(at.peak)});
  return table.lines();
}

}  // namespace

struct RunDiagnostics::State {
  State(const DiagnosticsConfig& given, const StrategySettings& settings, std::string run_folder,
        comm::World& joined)
      : config(given),
        strategy(settings.strategy),
        configured(strategy::shard_options_of(strategy)),
        folder(std::move(run_folder)),
        world(joined),
        top_k(static_cast<std::size_t>(config.tree_top_k)) {
    device_memory(world.device());  // from here on the CPU's memory is counted
    findings.strategy = strategy_lines(settings);
    say("strategy", findings.strategy);
  }
  ~State() { detach(); }

  bool leads() const { return world.rank() == 0; }
  void say(const char* about, const std::vector<std::string>& lines) const {
    if (leads())
      for (const std::string& line : lines) log::info(about, ": ", line);
  }
  void note(const std::string& sentence) {
    findings.add_note(sentence);
    if (leads()) log::warn(sentence);
  }
  // A full disk costs the diagnostics, not the run.
  template <class Work>
  void keep(const char* what, const Work& work) {
    try {
      work();
    } catch (const std::exception& e) {
      if (!std::exchange(not_kept, true)) log::warn(what, " cannot be written: ", e.what());
    }
  }
  void write() {
    if (leads()) keep("diagnostics.json", [&] { findings.write(folder + "/diagnostics.json"); });
  }

  void attach();
  void detach_memory();
  void detach();
  // The memory of the batch at hand.
  Numbers finish_memory();
  // All batches that are looked at are over.
  Numbers finish_batches();
  void finish_trace();
  // Rank 0: what the others measured.
  void add_other_ranks();
  void check_dtypes() const;

  const DiagnosticsConfig config;
  const StrategyConfig strategy;
  const shard::ShardOptions configured;  // what the engine should have been given
  const std::string folder;
  comm::World& world;
  const std::size_t top_k;
  Findings findings;

  shard::Engine* engine = nullptr;
  std::vector<optim::Optimizer*> optimizers;
  std::int64_t batch = 0;  // from 1: the one under way, counted anew after one that was skipped
  bool in_batch = false;
  std::string advice;  // of the last batch
  std::int64_t peak_bytes = 0;
  bool traced = false;    // the trace is written
  bool not_kept = false;  // something could not be written, and that was said
  std::optional<CollectiveTypes> collectives;
  std::optional<MemoryWatch> memory;
  std::optional<Timeline> timeline;
};

void RunDiagnostics::State::check_dtypes() const {
  for (const optim::Optimizer* optimizer : optimizers)
    diagnostics::check_dtypes(*engine, *optimizer, configured);
}

void RunDiagnostics::State::attach() {
  if (config.batches > 0) {
    collectives.emplace(configured);
    memory.emplace(*engine, optimizers);
    engine->add_observer(&*collectives);
    engine->add_observer(&*memory);
  }
  if (config.batches > 0 || config.trace_steps) {
    timeline.emplace(world.device());
    engine->add_observer(&*timeline);
  }
}

void RunDiagnostics::State::detach_memory() {
  if (collectives) engine->remove_observer(&*collectives);
  if (memory) engine->remove_observer(&*memory);
  collectives.reset();
  memory.reset();
}

void RunDiagnostics::State::detach() {
  if (!engine) return;
  detach_memory();
  if (timeline) engine->remove_observer(&*timeline);
  timeline.reset();
}

Numbers RunDiagnostics::State::finish_memory() {
  findings.add_memory(batch, world.rank(), memory->points());
  say("memory", memory_lines(batch, memory->points()));
  advice = memory->advice();
  peak_bytes = memory->largest().peak.bytes;
  say("memory", {advice});
  if (batch == 1) say("dtypes", {collectives->line()});
  Numbers numbers;
  for (const PointMemory& at : memory->points()) {
    const std::string name = str("memory/", name_of(at.point));
    numbers.emplace_back(name + "_mib", mebibytes(at.current_bytes));
    numbers.emplace_back(name + "_peak_mib", mebibytes(at.peak.bytes));
  }
  return numbers;
}

Numbers RunDiagnostics::State::finish_batches() {
  if (!advice.empty()) findings.add_note(advice);
  if (world.rank() != 0 && !findings.memory.empty())
    world.publish(memory_key(world.rank()), findings.memory.dump());
  detach_memory();
  const StepTimes times = step_times(without_first_step(timeline->spans()), engine->plan());
  if (times.num_steps == 0) return {};
  findings.times = times_json(times);
  say("times", time_lines(times, top_k, timeline->is_of_device()));
  return {{"time/step_s", times.step_s},
          {"time/gather_wait_s", times.gather_wait_s()},
          {"time/compute_s", times.compute_s()},
          {"time/reduce_wait_s", times.reduce_wait_s()}};
}

void RunDiagnostics::State::finish_trace() {
  traced = true;
  keep("the trace", [&] { write_trace(*timeline, folder, world.rank()); });
  say("trace", {str("the first ", batch, batch == 1 ? " batch is" : " batches are", " in ", folder,
                    "/trace, a file per rank; open them in ui.perfetto.dev")});
}

void RunDiagnostics::State::add_other_ranks() {
  if (!leads() || findings.memory.empty()) return;
  for (int rank = 1; rank < world.size(); ++rank) {
    const auto theirs = world.lookup(memory_key(rank), kPatience);
    if (!theirs) return;  // it did not come that far, or the store is gone
    const auto points = Json::parse(*theirs);
    findings.memory.insert(findings.memory.end(), points.begin(), points.end());
  }
  if (const std::string uneven = findings.uneven_memory(); !uneven.empty()) note(uneven);
}

RunDiagnostics::RunDiagnostics(const std::optional<DiagnosticsConfig>& config,
                               const StrategySettings& settings, std::string folder,
                               comm::World& world) {
  if (config) state_ = std::make_unique<State>(*config, settings, std::move(folder), world);
}

RunDiagnostics::~RunDiagnostics() = default;

void RunDiagnostics::begin(shard::Engine& engine,
                           const std::vector<optim::Optimizer*>& optimizers) {
  if (!state_) return;
  State& s = *state_;
  s.engine = &engine;
  s.optimizers = optimizers;
  const shard::ShardPlan& plan = engine.plan();
  const auto matches = match_lines(s.strategy, plan);
  s.findings.strategy.insert(s.findings.strategy.end(), matches.begin(), matches.end());
  s.say("strategy", matches);
  s.say("units", tree_lines(plan, s.top_k));
  s.findings.units = units_json(plan);
  s.findings.ranks = rank_bytes(plan);
  for (const std::string& sentence : plan_notes(plan)) s.note(sentence);

  const shard::MemoryInUse memory = engine.memory();
  log::info("units: this rank (", s.world.rank(), " of ", s.world.size(), ") holds ",
            format_bytes(memory.trainable_slices), " of trainable and ",
            format_bytes(memory.frozen_slices), " of frozen parameters");
  s.check_dtypes();
  s.say("dtypes", {dtype_line(engine, *optimizers[engine.active_set()])});
  s.write();
  s.attach();
}

void RunDiagnostics::mark(MemoryPoint point) {
  if (!state_ || !state_->timeline) return;
  State& s = *state_;
  if (point == MemoryPoint::batch_start) {
    if (!std::exchange(s.in_batch, true)) s.batch += 1;
    s.timeline->end_step();  // of a batch that was skipped
    s.timeline->begin_step(s.batch);
  }
  if (!s.memory || s.batch > s.config.batches) return;
  s.memory->mark(point);
  if (point == MemoryPoint::before_optimizer_step) {
    s.collectives->check();
    s.check_dtypes();
  }
}

Numbers RunDiagnostics::after_step(std::int64_t step) {
  if (!state_) return {};
  State& s = *state_;
  s.peak_bytes = 0;
  s.in_batch = false;
  if (!s.timeline) return {};
  s.timeline->end_step();
  const bool last_batch = s.memory && s.batch >= s.config.batches;
  const bool last_traced = s.config.trace_steps && s.batch >= *s.config.trace_steps && !s.traced;
  if (last_batch || last_traced) s.timeline->wait();
  Numbers numbers;
  if (s.memory && s.batch <= s.config.batches) numbers = s.finish_memory();
  if (last_batch) {
    const Numbers times = s.finish_batches();
    numbers.insert(numbers.end(), times.begin(), times.end());
  }
  if (last_traced) s.finish_trace();
  s.write();
  if (!s.memory && (s.traced || !s.config.trace_steps)) s.detach();
  return s.config.to_loggers ? numbers : Numbers{};
}

std::int64_t RunDiagnostics::peak_bytes() const { return state_ ? state_->peak_bytes : 0; }

void RunDiagnostics::end() {
  if (!state_ || !state_->engine) return;
  State& s = *state_;
  // What was measured is worth keeping, but never worth more than the run or its first failure.
  try {
    if (s.memory) s.finish_batches();
    if (s.timeline && s.config.trace_steps && !s.traced) {
      s.timeline->end_step();  // what was under way shows in the trace
      s.timeline->wait_at_most(kPatience);
      s.finish_trace();
    }
    s.add_other_ranks();
    s.write();
  } catch (const std::exception& e) {
    log::warn("the rest of the diagnostics is lost: ", e.what());
  }
  s.detach();
  s.engine = nullptr;
}

}  // namespace floe::diagnostics
