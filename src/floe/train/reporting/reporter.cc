#include "floe/train/reporting/reporter.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/observe/metrics/run_status.h"
#include "floe/schema/value.h"
#include "floe/train/step/precision.h"
#include "floe/version.h"

namespace floe::train {

namespace {

// A batch so many times larger than the noise scale is pointed out.
constexpr double kFarAboveNoise = 10;

// What counts for the peak of a device: the dtype of its matrix products.
bool computes_in_half(const RunConfig& config) {
  return config.strategy.mixed_precision.param != DType::f32 || config.precision.autocast;
}

void append_line(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app);
  file << line + "\n" << std::flush;
  if (!file) log::warn(path, " cannot be written");
}

}  // namespace

Reporter::Reporter(const config::Loaded<RunConfig>& loaded, comm::World& world)
    : config_(loaded.config),
      world_(world),
      config_json_(config::to_json(loaded.values)),
      config_yaml_(config::print_config(loaded.values)),
      folder_(loaded.config, world),
      diagnostics_(config_.log.diagnostics, strategy_settings(config_, loaded.values, world.size()),
                   folder_.path(), world),
      precision_(precision_lines(config_, loaded.values)),
      peak_tflops_(config_.log.peak_tflops
                       ? config_.log.peak_tflops
                       : diagnostics::peak_tflops(world.device(), computes_in_half(config_))) {
  if (world.rank() == 0) status_ = std::make_unique<StatusFile>(folder_.path(), world);
  diagnostics::device_memory(world.device());  // from here on the CPU's memory is counted
}

Reporter::~Reporter() = default;

void Reporter::begin(std::int64_t first_step, std::int64_t total_steps, shard::Engine& engine,
                     const std::vector<optim::Optimizer*>& optimizers,
                     const models::BuiltModel& built) {
  arithmetic_.emplace(engine.plan(), *built.model);
  // With diagnostics the same is said with everything else about the strategy.
  if (world_.rank() == 0 && !config_.log.diagnostics)
    for (const std::string& line : precision_) log::info("precision: ", line);
  diagnostics_.begin(engine, optimizers);
  if (world_.rank() != 0) return;

  written_step_ = first_step;
  folder_.write_config(config_yaml_);
  status_->begin(first_step, total_steps);
  observe::RunInfo run;
  run.name = config_.run.name;
  run.folder = folder_.path();
  run.config = config_json_;
  run.world_size = world_.size();
  run.first_step = first_step;
  run.version = kVersion;
  run.restarts = observe::restarts_so_far();
  sinks_ = observe::open_sinks(config_.log.sinks, run);
  progress_ =
      std::make_unique<observe::ProgressLine>(first_step, total_steps, config_.log.every_steps);
  if (first_step > total_steps)
    log::warn("nothing is left to train: the checkpoint is of step ", first_step,
              ", but the run ends after ", total_steps, "; raise train.steps to train on");
  log::info("training: ", std::max<std::int64_t>(0, total_steps - first_step), " of ",
            std::max(first_step, total_steps), " steps on ", world_.size(),
            world_.size() == 1 ? " rank" : " ranks", "; the run's files are in ", folder_.path());
}

void Reporter::count_work(const PackedBatch& batch, const models::ModelInput& input) {
  flops_ += arithmetic_->of(batch, input);
}

void Reporter::step(StepRecord& record) {
  const double flops = std::exchange(flops_, 0.0);
  auto numbers = diagnostics_.after_step(record.step);
  if (world_.rank() != 0) return;
  record.others.insert(record.others.end(), numbers.begin(), numbers.end());
  if (const double step_s = record.times.step(); step_s > 0)
    record.teraflops = flops / step_s / 1e12;
  if (peak_tflops_) record.mfu = record.teraflops / *peak_tflops_;
  write(record);
  progress_->update(to_progress(record, world_.size()));
  if (record.validated_step == record.step) emit_validation(record.step, record.others);
  watch_noise(record);
}

void Reporter::write(StepRecord& record) {
  record.phase_switch = std::exchange(of_switch_, nullptr);
  for (const auto& number : std::exchange(switch_numbers_, {})) record.others.push_back(number);
  record.memory_peak =
      std::max(diagnostics_.peak_bytes(), diagnostics::device_memory(world_.device()).peak_bytes);
  diagnostics::reset_peak(world_.device());
  sinks_->write(to_metrics(record, world_.size()));
  status_->step(record);
  written_step_ = record.step;
}

void Reporter::emit_validation(std::int64_t step,
                               const std::vector<std::pair<std::string, double>>& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values)
    if (name.starts_with("val_")) parts.push_back(str(name, " ", value));
  if (world_.rank() == 0 && !parts.empty())
    log::info("validation after step ", step, ": ", join(parts, "  "));
}

void Reporter::watch_noise(const StepRecord& record) {
  if (!record.noise_scale || warned_of_noise_) return;
  double batch = 0;
  for (const auto& source : record.sources) batch += static_cast<double>(source.samples);
  if (batch < kFarAboveNoise * *record.noise_scale) return;
  warned_of_noise_ = true;
  log::warn("a step has ", batch, " samples, but the gradient's noise justifies only about ",
            *record.noise_scale,
            " (gradient_noise_scale): a smaller batch would learn as much per step, and very large "
            "ones can cost quality");
}

void Reporter::skipped(std::int64_t step, const std::vector<PackedBatch>& batches) {
  nlohmann::json keys = nlohmann::json::array();
  for (const PackedBatch& batch : batches)
    for (const std::string& key : batch.sample_keys) keys.push_back(key);
  flops_ = 0;  // of a step that came to nothing
  append_line(folder_.path() + "/skipped.jsonl",
              nlohmann::json{{"step", step}, {"rank", world_.rank()}, {"samples", keys}}.dump(
                  -1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Reporter::before_switch(const shard::Engine& engine,
                             const std::vector<optim::Optimizer*>& optimizers,
                             const optim::Ema* ema, std::int64_t save_bytes) {
  before_switch_ = diagnostics::memory_owners(engine, optimizers, ema, save_bytes);
}

void Reporter::switched(const PhaseChange& change, const shard::Engine& engine,
                        const std::vector<optim::Optimizer*>& optimizers, const optim::Ema* ema,
                        std::int64_t save_bytes) {
  const diagnostics::MemoryOwners before = std::exchange(before_switch_, {});
  const diagnostics::MemoryOwners after =
      diagnostics::memory_owners(engine, optimizers, ema, save_bytes);
  for (const std::string& sentence :
       diagnostics::surplus(after, diagnostics::expected_owners(before, engine, optimizers, ema)))
    log::warn("after the switch to phase '", change.to, "' ", sentence);
  if (world_.rank() != 0) return;

  log::info("phase '", change.to, "' trains from step ", change.step + 1, " on, after '",
            change.from, "'; the switch took ", change.seconds, " s");
  // Turns may be short: the whole table once for every pair of phases, later it is in the JSON
  // lines.
  if (shown_switches_.emplace(change.from, change.to).second)
    for (const std::string& line : diagnostics::switch_lines(before, after))
      log::info("memory: ", line);
  of_switch_ = {{"from", change.from},
                {"to", change.to},
                {"seconds", change.seconds},
                {"memory", {{"before", owners_json(before)}, {"after", owners_json(after)}}}};
  switch_numbers_ = {{"memory_after_switch_bytes", static_cast<double>(after.device_bytes())}};
}

void Reporter::saved(const std::string& checkpoint, double time_s) {
  if (!sinks_) return;
  status_->saved(checkpoint, time_s);
  sinks_->saved(time_s);
  const std::string name = std::filesystem::path(checkpoint).filename().string();
  sinks_->add_files(checkpoint, "checkpoints/" + name);
}

void Reporter::set_total_steps(std::int64_t total_steps) {
  if (progress_) progress_->set_total_steps(total_steps);
  if (status_) status_->set_total_steps(total_steps);
}

void Reporter::end(const std::string& data_report, std::int64_t step, bool stopped,
                   const TimeAccount::Times& times, const std::string& early) {
  diagnostics_.end();
  if (world_.rank() != 0) return;
  progress_.reset();
  std::istringstream lines(data_report);
  for (std::string line; std::getline(lines, line);) log::info("data: ", line);
  log::info("time: ", times.text());
  if (stopped)
    log::info(step == 0 ? std::string("stopped before the first step")
                        : str("stopped after step ", step, ", with a checkpoint"),
              "; the same command goes on from ", step == 0 ? "there" : "it");
  else
    log::info("done: ", early.empty() ? counted(step, "step") : early);
  sinks_->finish(stopped ? 1 : 0);
}

void Reporter::failed(StepRecord& record) {
  try {
    progress_.reset();
    // Without the diagnostics' numbers: those may wait for a device that is stuck.
    if (sinks_ && record.step > written_step_) write(record);
    diagnostics_.end();
    if (sinks_) sinks_->finish(1);
  } catch (const std::exception& e) {
    log::warn("the logs could not be closed: ", e.what());
  }
}

}  // namespace floe::train
