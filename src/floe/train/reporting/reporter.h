// What a run writes about itself: its folder, logs, metrics, progress and diagnostics. It is the
// one place where the trainer meets what watches a run (observe/), and knows both: the run's
// configuration and folder on this side, sinks, progress line and diagnostics on the other.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/comm/world.h"
#include "floe/models/build.h"
#include "floe/observe/diagnostics/arithmetic.h"
#include "floe/observe/diagnostics/memory_owners.h"
#include "floe/observe/diagnostics/memory_watch.h"
#include "floe/observe/diagnostics/run_diagnostics.h"
#include "floe/observe/metrics/progress.h"
#include "floe/observe/sinks/sink.h"
#include "floe/optim/ema.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"
#include "floe/train/reporting/status_file.h"
#include "floe/train/reporting/step_record.h"
#include "floe/train/run_config.h"
#include "floe/train/setup/run_folder.h"

namespace floe::train {

// The moment at which another set of parameters begins to train.
struct PhaseChange {
  std::int64_t step = 0;  // updates that are done
  std::string from, to;   // names of phases
  double seconds = 0;     // of the host; on a GPU copies may go on behind it
};

using diagnostics::MemoryPoint;

class Reporter {
 public:
  // Collective: opens the run's folder.
  Reporter(const config::Loaded<RunConfig>& loaded, comm::World& world);
  ~Reporter();

  // Everything is built: `first_step` updates are done, `total_steps` is the goal.
  void begin(std::int64_t first_step, std::int64_t total_steps, shard::Engine& engine,
             const std::vector<optim::Optimizer*>& optimizers, const models::BuiltModel& built);
  void mark(MemoryPoint point) { diagnostics_.mark(point); }
  // A pass over this input was made: its arithmetic counts for TFLOP/s.
  void count_work(const PackedBatch& batch, const models::ModelInput& input);
  // Fills in what only the reporter knows, and writes the record.
  void step(StepRecord& record);
  void emit_validation(std::int64_t step,
                       const std::vector<std::pair<std::string, double>>& values);
  // Which samples the loss was not finite for: RUN/skipped.jsonl of this rank.
  void skipped(std::int64_t step, const std::vector<PackedBatch>& batches);
  // Around Engine::activate, between steps: whose memory it was before and is after, and who holds
  // more than the plan says. Not around the one that puts a resumed run into the phase of its
  // checkpoint, but around one that the checkpoint had still before it: its line is taken back with
  // the later steps. `save_bytes`: Checkpointer::host_bytes.
  void before_switch(const shard::Engine& engine, const std::vector<optim::Optimizer*>& optimizers,
                     const optim::Ema* ema, std::int64_t save_bytes);
  void switched(const PhaseChange& change, const shard::Engine& engine,
                const std::vector<optim::Optimizer*>& optimizers, const optim::Ema* ema,
                std::int64_t save_bytes);
  // A finished save lies there, since this unix time.
  void saved(const std::string& checkpoint, double time_s);
  // Where the run ends as things stand now.
  void set_total_steps(std::int64_t total_steps);
  // `early`: "120 of 500 steps: …" of a run that has ended before its last step; else empty.
  void end(const std::string& data_report, std::int64_t step, bool stopped,
           const TimeAccount::Times& times, const std::string& early);
  // `record`: of the last step. Where it was trained and not written yet, because what came after
  // it failed, it is written now: the checkpoint of an emergency may be of that step.
  void failed(StepRecord& record);

  // The resolved configuration.
  const nlohmann::json& config_json() const { return config_json_; }
  // run.resume, but for a job that was started again: see Note [Started again].
  std::string resume() const { return folder_.goes_on() ? "auto" : config_.run.resume; }

 private:
  // Rank 0.
  void write(StepRecord& record);
  // Points out, once, a batch far above what the gradient's noise justifies.
  void watch_noise(const StepRecord& record);

  const RunConfig config_;
  comm::World& world_;
  nlohmann::json config_json_;
  std::string config_yaml_;
  RunFolder folder_;
  std::unique_ptr<StatusFile> status_;  // rank 0
  diagnostics::RunDiagnostics diagnostics_;
  std::unique_ptr<observe::Sink> sinks_;             // rank 0
  std::unique_ptr<observe::ProgressLine> progress_;  // rank 0
  std::vector<std::string> precision_;               // lines
  std::optional<diagnostics::Arithmetic> arithmetic_;
  double flops_ = 0;  // of this rank since the last record
  std::optional<double> peak_tflops_;
  bool warned_of_noise_ = false;
  std::int64_t written_step_ = 0;
  diagnostics::MemoryOwners before_switch_;
  std::set<std::pair<std::string, std::string>> shown_switches_;
  // Of a switch, for the next record:
  nlohmann::ordered_json of_switch_;
  std::vector<std::pair<std::string, double>> switch_numbers_;
};

}  // namespace floe::train
