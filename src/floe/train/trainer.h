// The training loop.
//
//   Trainer trainer(loaded, world, signals);
//   trainer.run();
//
// A step reads a batch of every source, goes forward and backward over them, agrees with the other
// ranks (one small all-reduce: the gradient norm, whether everything is finite, what is logged,
// whether somebody was asked to stop), clips, and updates. A step that is not finite anywhere is
// skipped by all ranks together: it advances the data, but not `step`, the learning rate, the
// average or the phase.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/comm/activity.h"
#include "floe/comm/world.h"
#include "floe/data/loader/loader.h"
#include "floe/eval/tasks/samples.h"
#include "floe/models/build.h"
#include "floe/optim/ema.h"
#include "floe/shard/engine.h"
#include "floe/train/phases/phase_schedule.h"
#include "floe/train/phases/phases.h"
#include "floe/train/reporting/reporter.h"
#include "floe/train/reporting/step_record.h"
#include "floe/train/run_config.h"
#include "floe/train/run_signals.h"
#include "floe/train/setup/resume.h"
#include "floe/train/setup/same_run.h"
#include "floe/train/step/loss_scale.h"
#include "floe/train/step/noise_scale.h"
#include "floe/train/step/step_graphs.h"
#include "floe/train/step/stragglers.h"
#include "floe/train/step/time_account.h"

namespace floe::train {

class Validation;

class Trainer {
 public:
  // Collective: builds the model, reads its weights, opens the data and restores the
  // checkpoint that run.resume chooses. What `signals` asks for on any rank is done by all
  // after the step under way.
  Trainer(const config::Loaded<RunConfig>& loaded, std::shared_ptr<comm::World> world,
          RunSignals& signals);
  ~Trainer();

  // Collective: all steps that are left. When a step throws, this rank's state is saved without the
  // others (Checkpointer::emergency) and the exception goes on.
  void run();

  std::int64_t step() const { return step_; }
  std::int64_t total_steps() const { return total_steps_; }
  bool stopped() const { return stopping_ && !finished(); }

 private:
  void open_data();
  void resume();

  // With train.epochs a run ends with the data, however many updates that took; else by its steps.
  bool finished() const;
  // train.epochs: where the run ends as things stand; skipped steps bring it nearer.
  void count_steps_left();
  // "120 of 500 steps: …", and why; empty where all steps were made.
  std::string early_end() const;
  // The set whose turn it is trains from now on.
  void advance_phase();
  std::uint64_t dropout_seed() const;
  // One update, or a skipped one: false.
  bool train_step(StepRecord& record);
  std::vector<PackedBatch> read_batches();
  // Forward and backward of each. `measure`: this rank's own gradients, for the noise scale.
  StepSums compute(const std::vector<PackedBatch>& batches, bool measure);
  void forward_backward(const PackedBatch& batch, const std::vector<double>& divisors,
                        StepSums& sums);
  // What `loss_mean: global` divides by: labelled tokens of each source per rank and micro-batch.
  std::vector<double> global_divisors(const std::vector<PackedBatch>& batches);
  struct Agreed {
    shard::Agreement all;
    StepTotals totals;
  };
  // Collective: what the step comes to on all ranks, before anything is updated.
  Agreed agree(const StepSums& sums, bool measure, StepRecord& record);
  // With what this step has measured; see NoiseScale.
  std::optional<double> noise_scale(const StepTotals& totals, double norm, double scale);
  void skip(const std::vector<PackedBatch>& batches, bool finite_here, double scale);
  void update(double gradient_norm, double factor, StepRecord& record);
  void after_step(StepRecord& record);
  // What this rank did in the step without waiting for others; it travels with the next agreement.
  void measure_own_time(const TimeAccount::Times& times);
  // A validation that a stop kept the run from making, before the next step.
  void make_up_for_validation(StepRecord& record);
  void validate(StepRecord& record);
  // What validation found, to whatever waits for it.
  void observe(const StepRecord& record);
  // Whether ranks that hold the same copy still do, when it is due.
  void verify_copies(bool before_save);
  bool save_is_due() const;
  // Collective, of a run that stops: whether a save would be on disk within run.stop_grace_s, as
  // far as earlier ones tell.
  bool save_fits() const;
  void save(const std::map<std::string, double>& metrics = {});
  // Waits for the save under way; false when it failed and training is to go on.
  bool finish_save();
  // A save that has been finished since the last time goes to the logs.
  void report_saved();
  // The state of the last step is on disk afterwards, or an exception says that it is not.
  void finish_last_save();

  nlohmann::json shared_state() const;
  nlohmann::json rank_state() const;

  const RunConfig config_;
  std::shared_ptr<comm::World> world_;
  RunSignals& signals_;
  TimeAccount time_;
  std::unique_ptr<c10::StreamGuard> stream_;  // with strategy.cuda_graphs
  ModelFilesCheck model_files_;
  std::vector<eval::TaskData> tasks_;  // of validation, until that is made
  models::BuiltModel built_;
  std::shared_ptr<shard::Engine> engine_;
  std::unique_ptr<StepGraphs> graphs_;  // null: every pass runs
  std::unique_ptr<Phases> phases_;
  std::unique_ptr<optim::Ema> ema_;  // null: none
  std::unique_ptr<checkpoint::Checkpointer> checkpoints_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Validation> validation_;  // null: none
  std::unique_ptr<Reporter> reporter_;
  Stragglers stragglers_;
  RankTimes last_times_;           // of the step before, on this rank
  comm::Activity::Waited waited_;  // in collectives of the last step
  LossScale loss_scale_;
  std::vector<NoiseScale> noise_;  // of each set
  bool measures_noise_ = false;
  EarlyStop early_stop_;

  std::int64_t step_ = 0, total_steps_ = 0;
  std::int64_t attempts_ = 0;     // updates and skipped ones: the number of the step's data
  std::int64_t epoch_ = 0;        // of the step's last batch
  std::int64_t micro_steps_ = 1;  // batches of each source in the step under way
  bool save_asked_ = false;       // by a signal, or an epoch that ended
  bool owes_validation_ = false;  // one was due when the run stopped
  std::int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  bool stopping_ = false;
  bool mixed_ = false;                      // the ranks have different models: nothing may be saved
  std::int64_t verified_step_ = -1;         // Engine::verify_copies
  std::string began_from_;                  // checkpoint::kBeganFrom
  bool prepare_save_ = true;                // there is more to save than before
  std::int64_t saving_attempts_ = -1;       // of the last save
  std::unique_ptr<StopDeadline> deadline_;  // while the run trains
  std::string reported_checkpoint_;         // the newest checkpoint that the reporter knows of
  data::LoaderState data_before_;           // where the loader stood before the step under way
  DataPosition data_position_;              // of the checkpoint, until the data is opened
};

}  // namespace floe::train
