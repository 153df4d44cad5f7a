#include "floe/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>

#include "floe/checkpoint/load/resume.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/packing/packing.h"
#include "floe/train/reporting/data_report.h"
#include "floe/train/reporting/step_record.h"
#include "floe/train/setup/parallelize.h"
#include "floe/train/setup/run_setup.h"
#include "floe/train/step/precision.h"
#include "floe/train/validation.h"
#include "floe/train/validation_tasks.h"

namespace floe::train {
namespace {

std::string keys_of(const std::vector<PackedBatch>& batches) {
  constexpr std::size_t kMost = 16;
  std::vector<std::string> keys;
  for (const PackedBatch& batch : batches)
    keys.insert(keys.end(), batch.sample_keys.begin(), batch.sample_keys.end());
  if (keys.size() > kMost) {
    const std::string rest = str(keys.size() - kMost, " more");
    keys.resize(kMost);
    keys.push_back(rest);
  }
  return join(keys, ", ");
}

// By which the best checkpoints are chosen.
std::map<std::string, double> metrics_of(const StepRecord& record) {
  std::map<std::string, double> metrics(record.others.begin(), record.others.end());
  for (const auto& source : record.sources) metrics["loss_" + source.name] = source.loss;
  return metrics;
}

// Before anything is built: whether all ranks mean the same run.
ModelFilesCheck checked_files(const config::Loaded<RunConfig>& loaded, comm::World& world) {
  require_same_config(loaded, world);
  return {loaded.config.model, world};
}

// What is wrong with them is said before a model is built.
std::vector<eval::TaskData> validation_tasks(const config::Loaded<RunConfig>& loaded,
                                             const comm::World& world) {
  if (loaded.config.train.validation.tasks.empty()) return {};
  require_inputs(loaded, world.size(), world.rank());
  return read_validation_tasks(loaded.config);
}

}  // namespace

Trainer::Trainer(const config::Loaded<RunConfig>& loaded, std::shared_ptr<comm::World> world,
                 RunSignals& signals)
    : config_(loaded.config),
      world_(std::move(world)),
      signals_(signals),
      stream_(graph_stream(config_, *world_)),
      model_files_(checked_files(loaded, *world_)),
      tasks_(validation_tasks(loaded, *world_)),
      built_(build_run_model(loaded, *world_)),
      stragglers_(world_->size()),
      loss_scale_(first_loss_scale(config_).value_or(0)),
      early_stop_(config_.train.stop) {
  reporter_ = std::make_unique<Reporter>(loaded, *world_);
  check_weights(config_, *world_);
  engine_ = parallelize(config_, built_, world_);
  built_.module->train();
  if (config_.strategy.cuda_graphs)
    graphs_ = std::make_unique<StepGraphs>(*built_.model, *engine_, graph_options(config_));
  phases_ = std::make_unique<Phases>(config_, *engine_);
  noise_.resize(phases_->schedule().size());
  if (config_.train.ema.decay)
    ema_ = std::make_unique<optim::Ema>(*engine_, *config_.train.ema.decay);
  checkpoints_ = std::make_unique<checkpoint::Checkpointer>(
      checkpointer_options(config_, built_, *engine_, *phases_, ema_.get()));
  resume();
  open_data();
  total_steps_ = count_steps(config_, phases_->schedule(), step_, *loader_);
  phases_->plan_rates(total_steps_);
  if (config_.train.epochs && loader_->epoch() > *config_.train.epochs && world_->rank() == 0)
    log::warn("nothing is left to train: ", counted(loader_->epoch(), "epoch"),
              " of the data are over, but train.epochs is ", *config_.train.epochs);
  validation_ = make_validation(config_, built_, *engine_, std::move(tasks_), signals_.stop);
  // Micro-batches and passes over other sources would be reductions of other batches.
  measures_noise_ =
      world_->size() > 1 && config_.train.gradient_accumulation == 1 &&
      (config_.train.packed || (!config_.data.batches && config_.data.sources().size() == 1));
  reporter_->begin(step_, early_stop_.reached() ? step_ : total_steps_, *engine_,
                   phases_->optimizers(), built_);
}

Trainer::~Trainer() = default;

bool Trainer::finished() const {
  if (phases_->schedule().over() || early_stop_.reached()) return true;
  return config_.train.epochs ? loader_->epoch() >= *config_.train.epochs : step_ >= total_steps_;
}

void Trainer::run() {
  deadline_ = std::make_unique<StopDeadline>(signals_, config_.run.stop_grace_s, *world_);
  time_.lap(TimeAccount::setup);
  time_.take();
  StepRecord record;
  try {
    stopping_ = engine_->any_rank_has(signals_.stop);  // asked for while everything was built
    while (!finished() && !stopping_) {
      record = {};
      make_up_for_validation(record);
      if (finished() || stopping_) break;
      advance_phase();
      if (train_step(record))
        after_step(record);
      else if (save_is_due())
        save();
    }
    require(step_ > 0 || skipped_ == 0, "all ", skipped_,
            " steps were skipped, because a loss or gradient was not finite; nothing was trained");
    finish_last_save();
    if (graphs_) log::info(graphs_->summary());
    reporter_->end(data_report(*loader_, *world_), step_, stopped(), time_.total(), early_end());
  } catch (...) {
    world_->fail(std::current_exception());  // before anything that takes time
    deadline_->reached();
    record.times = time_.take();
    reporter_->failed(record);
    // Before the first step there is nothing to lose.
    if (config_.checkpoint.on_exception && loader_ && attempts_ > 0 && !mixed_)
      checkpoints_->emergency(step_, shared_state(), data_before_.save());
    throw;
  }
}

std::string Trainer::early_end() const {
  const PhaseSchedule& schedule = phases_->schedule();
  std::string why;
  if (early_stop_.reached())
    why = early_stop_.reason();
  else if (schedule.over())
    why = str("phase '", schedule.name(), "' has ended, and none follows");
  if (why.empty() || step_ >= total_steps_) return "";
  return str(step_, " of ", total_steps_, " steps: ", why);
}

void Trainer::advance_phase() {
  PhaseSchedule& schedule = phases_->schedule();
  const std::string from = schedule.name();
  if (!schedule.advance()) return;
  const std::vector<optim::Optimizer*> optimizers = phases_->optimizers();
  reporter_->before_switch(*engine_, optimizers, ema_.get(), checkpoints_->host_bytes());
  time_.lap(TimeAccount::other);
  {
    const auto updating = checkpoints_->updating();
    engine_->activate(schedule.current());
  }
  prepare_save_ = true;
  const double seconds = time_.lap(TimeAccount::phase_switch);
  reporter_->switched({step_, from, schedule.name(), seconds}, *engine_, optimizers, ema_.get(),
                      checkpoints_->host_bytes());
}

// A function of the step, so that a resumed run drops out what the unbroken one would.
std::uint64_t Trainer::dropout_seed() const {
  return Hash64()
      .add("dropout")
      .add(config_.run.seed)
      .add(static_cast<std::uint64_t>(attempts_))
      .add(static_cast<std::uint64_t>(world_->rank()))
      .value();
}

bool Trainer::train_step(StepRecord& record) {
  data_before_ = loader_->state();
  at::manual_seed(dropout_seed());
  time_.lap(TimeAccount::other);
  comm::Activity& activity = comm::Activity::of_this_rank();
  const comm::Activity::Waited before = activity.waited();
  activity.begin("reads data");
  const std::vector<PackedBatch> batches = read_batches();
  const double data_s = time_.lap(TimeAccount::data);
  reporter_->mark(MemoryPoint::batch_start);

  const bool measure = measures_noise_ && (step_ + 1) % config_.log.every_steps == 0;
  activity.begin("computes forward and backward");
  const StepSums sums = compute(batches, measure);
  const auto [all, totals] = agree(sums, measure, record);
  ++attempts_;
  stopping_ = totals.stop;
  save_asked_ = save_asked_ || totals.save;
  const double scale = loss_scale_.value();
  loss_scale_.update(all.finite);
  if (!all.finite) {
    skip(batches, all.locally_finite, scale);
    time_.move(TimeAccount::data, TimeAccount::skipped, data_s);
    time_.lap(TimeAccount::skipped);
    return false;
  }
  skipped_in_a_row_ = 0;

  const double norm = all.gradient_norm / scale;
  if (loss_scale_.active()) record.loss_scale = scale;
  if (measure) record.noise_scale = noise_scale(totals, norm, scale);
  record.gradient_norm = norm;
  activity.begin("updates the parameters");
  update(norm, 1 / scale, record);
  record.step = step_;
  if (phases_->several()) record.phase = phases_->schedule().name();
  record.epoch = epoch_;
  record.sources = totals.sources;
  record.tokens = totals.tokens;
  record.bad_samples = totals.bad_samples;
  record.skipped = skipped_;
  time_.lap(TimeAccount::compute);
  const comm::Activity::Waited after = activity.waited();
  waited_ = {after.gather_s - before.gather_s, after.reduce_s - before.reduce_s,
             after.all_s - before.all_s};
  return true;
}

StepSums Trainer::compute(const std::vector<PackedBatch>& batches, bool measure) {
  std::vector<double> divisors;
  if (config_.train.loss_mean == TrainConfig::LossMean::global) divisors = global_divisors(batches);
  if (measure) engine_->measure_local_gradients(true);
  StepSums sums;
  for (const PackedBatch& batch : batches) {
    engine_->set_gradient_sync(&batch == &batches.back());
    forward_backward(batch, divisors, sums);
  }
  return sums;
}

Trainer::Agreed Trainer::agree(const StepSums& sums, bool measure, StepRecord& record) {
  deadline_->check();
  StepNumbers numbers = sums.numbers();
  numbers.bad_samples = count_bad(*loader_);
  numbers.ranks_that_stop = signals_.stop ? 1 : 0;
  numbers.ranks_that_save = signals_.save.exchange(false) ? 1 : 0;
  if (measure) numbers.local_square = engine_->take_local_square();
  numbers.rank_times = encode(last_times_, world_->rank(), world_->size());
  const shard::Agreement all =
      engine_->agree(/*locally_finite=*/true, numbers.encode(), sums.losses());
  engine_->measure_local_gradients(false);
  const StepNumbers everybody = StepNumbers::decode(all.sums, numbers.rank_times.size());
  record.rank_times = decode_times(everybody.rank_times);
  return {all, StepTotals(everybody)};
}

std::optional<double> Trainer::noise_scale(const StepTotals& totals, double norm, double scale) {
  double samples = 0;
  for (const auto& source : totals.sources) samples += static_cast<double>(source.samples);
  const int ranks = world_->size();
  NoiseScale& noise = noise_[engine_->active_set()];
  noise.add(totals.local_square / ranks / (scale * scale), norm * norm, samples / ranks, ranks);
  return noise.value();
}

std::vector<PackedBatch> Trainer::read_batches() {
  std::vector<PackedBatch> batches;
  const auto& every_epochs = config_.checkpoint.every_epochs;
  for (micro_steps_ = 0; micro_steps_ < config_.train.gradient_accumulation;) {
    deadline_->check();
    const data::Batch batch = loader_->next([this] { deadline_->check(); });
    ++micro_steps_;
    epoch_ = batch.epoch;
    if (config_.train.packed)
      batches.push_back(packing::pack(batch));
    else
      for (std::size_t s = 0; s < batch.sources.size(); ++s)
        batches.push_back(packing::pack(batch, s));
    if (!batch.ends_epoch) continue;
    if (every_epochs && (batch.epoch + 1) % *every_epochs == 0) save_asked_ = true;
    // The last update of the last epoch takes what is left.
    if (config_.train.epochs && batch.epoch + 1 >= *config_.train.epochs) break;
  }
  return batches;
}

void Trainer::forward_backward(const PackedBatch& batch, const std::vector<double>& divisors,
                               StepSums& sums) {
  models::InputOptions options;
  options.device = world_->device();
  options.dtype = compute_dtype(config_);
  options.num_sources = static_cast<std::int64_t>(data::num_sources());
  options.loss.weight = loss_weights(config_.data);
  options.loss.divisor = divisors;
  options.rounded = graphs_ && graphs_->should_round(batch);
  const double shares = divisors.empty() ? static_cast<double>(micro_steps_) : 1;
  for (double& weight : options.loss.weight) weight *= loss_scale_.value() / shares;

  const auto input = models::prepare(*built_.model, batch, options);
  const auto after_forward = [this] { reporter_->mark(MemoryPoint::after_forward); };
  const PassLosses losses =
      graphs_ ? graphs_->run(input, after_forward) : run_pass(*built_.model, input, after_forward);
  reporter_->mark(MemoryPoint::after_backward);
  deadline_->check();
  sums.add(batch, *input, losses.of_source);
  reporter_->count_work(batch, *input);
}

std::vector<double> Trainer::global_divisors(const std::vector<PackedBatch>& batches) {
  const std::size_t num_sources = data::num_sources();
  std::vector<double> labels(num_sources, 0.0);
  for (const PackedBatch& batch : batches) {
    const auto counts =
        models::count_targets(*built_.model, batch, static_cast<std::int64_t>(num_sources));
    for (std::size_t s = 0; s < num_sources; ++s) labels[s] += static_cast<double>(counts[s]);
  }
  const at::Tensor all = at::tensor(labels, at::kDouble).to(world_->device());
  world_->group()->all_reduce(all, comm::Reduce::average, "labelled tokens").wait();
  const at::Tensor means = world_->read(all);
  return {means.const_data_ptr<double>(), means.const_data_ptr<double>() + num_sources};
}

void Trainer::skip(const std::vector<PackedBatch>& batches, bool finite_here, double scale) {
  engine_->clear_gradients();
  ++skipped_;
  ++skipped_in_a_row_;
  count_steps_left();
  const std::string what = loss_scale_.active()
                               ? str("a loss or gradient is not finite with the loss scale ", scale,
                                     ", which is ", loss_scale_.value(), " from now on")
                               : std::string("a loss or gradient is not finite");
  const std::string here = finite_here ? "" : "; the loss of this rank is not";
  log::warn("step ", step_ + 1, " is skipped on all ranks: ", what, here,
            "; samples: ", keys_of(batches));
  reporter_->skipped(step_ + 1, batches);
  // A scale that is still too large halves itself a few times; that is no fault of the data.
  const bool searching = loss_scale_.active() && loss_scale_.value() > 1;
  require(searching || skipped_in_a_row_ <= config_.train.max_skipped, skipped_in_a_row_,
          " steps in a row had a loss or gradient that is not finite (train.max_skipped is ",
          config_.train.max_skipped,
          "); lower train.optimizer.lr, or look at the samples that the log names");
}

void Trainer::count_steps_left() {
  if (!config_.train.epochs) return;
  total_steps_ = count_steps(config_, phases_->schedule(), step_, *loader_);
  phases_->plan_rates(total_steps_);
  reporter_->set_total_steps(total_steps_);
}

void Trainer::update(double gradient_norm, double factor, StepRecord& record) {
  reporter_->mark(MemoryPoint::before_optimizer_step);
  if (config_.train.clip.norm)
    factor *= optim::clip_factor(gradient_norm, *config_.train.clip.norm);
  // The optimizer multiplies afterwards.
  if (config_.train.clip.value) optim::clip_by_value(*engine_, *config_.train.clip.value / factor);
  record.lr = phases_->lr(step_);
  {
    const auto updating = checkpoints_->updating();
    phases_->update(step_, factor);
    if (ema_) ema_->update();
    ++step_;
    data_before_ = loader_->state();
  }
  engine_->clear_gradients();
  reporter_->mark(MemoryPoint::batch_end);
}

void Trainer::after_step(StepRecord& record) {
  if (validation_) {
    const bool due = step_ % *config_.train.validation.every_steps == 0;
    // A stop saves first: whoever asked for it may not wait for long. What was due is made up for
    // when the run goes on, so that a run in two parts has the same turns as one in one part.
    if (stopping_)
      owes_validation_ = due;
    else if (due || finished())
      validate(record);
    if (due && !owes_validation_) observe(record);
  }
  if (early_stop_.reached() && step_ < total_steps_) record.ended_early = early_stop_.reason();
  verify_copies(/*before_save=*/false);
  if (std::exchange(prepare_save_, false)) checkpoints_->prepare();
  if (save_is_due()) save(metrics_of(record));
  time_.lap(TimeAccount::other);
  record.times = time_.take();
  measure_own_time(record.times);
  if (const auto slow = stragglers_.add(record.rank_times, record.times.step(),
                                        [this](int rank) { return world_->name_of(rank); });
      slow && world_->rank() == 0)
    log::warn(*slow);
  report_saved();
  reporter_->step(record);
}

void Trainer::measure_own_time(const TimeAccount::Times& times) {
  last_times_ = {times.of(TimeAccount::data), std::max(0.0, times.step() - waited_.all_s),
                 waited_.gather_s, waited_.reduce_s};
}

void Trainer::make_up_for_validation(StepRecord& record) {
  if (!owes_validation_ || !validation_) return;
  validate(record);
  if (owes_validation_) return;
  reporter_->emit_validation(step_, record.others);
  observe(record);
  // The save that a stop asked for came before its metric: now it has one to be ranked by.
  const auto& every_steps = config_.checkpoint.every_steps;
  if (config_.checkpoint.keep_best.n > 0 && every_steps && step_ % *every_steps == 0)
    save(metrics_of(record));
}

void Trainer::observe(const StepRecord& record) {
  phases_->schedule().observe(metrics_of(record));
  early_stop_.observe(step_, metrics_of(record));
}

void Trainer::validate(StepRecord& record) {
  time_.lap(TimeAccount::other);
  comm::Activity::of_this_rank().begin("validates");
  owes_validation_ = true;  // for a checkpoint that is saved in the middle of it
  if (auto measured = validation_->run()) {
    record.others = std::move(*measured);
    record.validated_step = step_;
    owes_validation_ = false;
  } else {
    stopping_ = true;  // some rank was asked to, and all have left it
  }
  time_.lap(TimeAccount::validation);
}

void Trainer::verify_copies(bool before_save) {
  const auto& every_steps = config_.dist.verify_every_steps;
  if (!every_steps || step_ == verified_step_ || (!before_save && step_ % *every_steps != 0))
    return;
  verified_step_ = step_;
  try {
    engine_->verify_copies();
  } catch (const ShardError&) {
    mixed_ = true;
    throw;
  }
}

bool Trainer::save_is_due() const {
  if (finished() || stopping_ || save_asked_) return attempts_ != saving_attempts_;
  // Not after a skipped step: the state of this one is saved already.
  const auto& every_steps = config_.checkpoint.every_steps;
  return every_steps && skipped_in_a_row_ == 0 && step_ % *every_steps == 0;
}

bool Trainer::save_fits() const {
  if (!config_.checkpoint.on_exception) return true;
  const double needed_s = checkpoints_->expected_seconds();
  const double left_s = config_.run.stop_grace_s - signals_.since_stop_s();
  const bool fits = !engine_->any_rank_has(needed_s > left_s);
  if (!fits && world_->rank() == 0)
    log::warn("there is no time for a save: the last one says that it takes ", needed_s,
              " s, and of run.stop_grace_s (", config_.run.stop_grace_s, ") ",
              std::max(0.0, left_s), " s are left; every rank writes its part of an emergency set");
  return fits;
}

void Trainer::save(const std::map<std::string, double>& metrics) {
  comm::Activity::of_this_rank().begin("saves");
  if (stopping_) deadline_->reached();
  time_.lap(TimeAccount::other);
  if (stopping_ && !save_fits()) {
    checkpoints_->save_apart(step_, shared_state(), rank_state());
    time_.lap(TimeAccount::saving);
    saving_attempts_ = attempts_;
    save_asked_ = false;
    return;
  }
  try {
    model_files_.compare_all();
  } catch (const ConfigError&) {
    mixed_ = true;
    throw;
  }
  verify_copies(/*before_save=*/true);
  finish_save();
  time_.lap(TimeAccount::save_wait);
  checkpoints_->save(step_, shared_state(), rank_state(), metrics);
  time_.lap(TimeAccount::saving);
  saving_attempts_ = attempts_;
  save_asked_ = false;
}

bool Trainer::finish_save() {
  const bool good = checkpoints_->wait();
  report_saved();
  return good;
}

void Trainer::report_saved() {
  const checkpoint::Saved saved = checkpoints_->last_save();
  if (saved.path.empty() || saved.path == reported_checkpoint_) return;
  reported_checkpoint_ = saved.path;
  reporter_->saved(saved.path, saved.time_s);
}

void Trainer::finish_last_save() {
  comm::Activity::of_this_rank().begin("ends the run");
  deadline_->reached();
  time_.lap(TimeAccount::other);
  // The last step may have been a skipped one. Before the first step there is nothing to save.
  if (attempts_ != saving_attempts_ && attempts_ > 0) save();
  // Together: a rank may have given a save up that the others have made.
  bool good = !engine_->any_rank_has(!finish_save());
  if (!good) {
    if (world_->rank() == 0) log::warn("the last save failed; trying it once more");
    save();
    good = !engine_->any_rank_has(!finish_save());
  }
  time_.lap(TimeAccount::save_wait);
  const std::string last = checkpoints_->last_saved();
  require<CheckpointError>(good, "the last save failed, so that step ", step_,
                           " is not on disk; the newest checkpoint is ",
                           last.empty() ? "that of an earlier start" : str("'", last, "'"),
                           "; make room and start the same command again");
}

nlohmann::json Trainer::shared_state() const {
  nlohmann::json state{
      {"step", step_},
      {"epoch", epoch_},
      {"attempts", attempts_},
      {"skipped", skipped_},
      {"skipped_in_a_row", skipped_in_a_row_},
      {"owes_validation", owes_validation_},
      {checkpoint::kBeganFrom, began_from_},
      {"total_steps", total_steps_},
      {"loss_scale", {{"scale", loss_scale_.value()}, {"good_steps", loss_scale_.good_steps()}}},
      {"lr_scheduler", {{"last_epoch", step_}, {"base_lr", phases_->base_lr()}}},
      {"world_size", world_->size()},
      {"config", reporter_->config_json()}};
  if (nlohmann::json phases = phases_->save(); !phases.is_null())
    state["phases"] = std::move(phases);
  if (nlohmann::json stop = early_stop_.save(); !stop.is_null()) state["stop"] = std::move(stop);
  return state;
}

nlohmann::json Trainer::rank_state() const { return loader_->state().save(); }

void Trainer::resume() {
  const auto log_changes = [this](const nlohmann::json& saved) {
    if (world_->rank() == 0)
      log_resume_changes(saved, reporter_->config_json(), config_, world_->size());
  };
  RunSection run = config_.run;
  run.resume = reporter_->resume();
  std::optional<checkpoint::Restored> restored;
  try {
    restored = checkpoints_->resume(run.resume);
  } catch (const CheckpointError&) {
    if (world_->rank() == 0) log_changes(newest_state(run));
    throw;
  }
  if (!restored) return;
  const nlohmann::json& state = restored->shared;
  log_changes(state);
  step_ = restored->step;
  epoch_ = state.value("epoch", std::int64_t{0});
  attempts_ = state.value("attempts", step_);
  skipped_ = state.value("skipped", std::int64_t{0});
  skipped_in_a_row_ = state.value("skipped_in_a_row", std::int64_t{0});
  owes_validation_ = state.value("owes_validation", false);
  began_from_ =
      restored->of_this_run ? state.value(checkpoint::kBeganFrom, "") : config_.run.resume;
  // What was saved in an emergency becomes a checkpoint of the ordinary kind, if only at the end.
  if (!restored->emergency) saving_attempts_ = attempts_;
  if (const auto scale = state.find("loss_scale"); scale != state.end())
    loss_scale_.restore(scale->value("scale", 1.0), scale->value("good_steps", std::int64_t{0}));
  phases_->restore(state.value("phases", nlohmann::json()));
  early_stop_.restore(state.value("stop", nlohmann::json()));
  data_position_ = data_position(*restored, config_);
}

void Trainer::open_data() {
  data::LoaderContext context = loader_context(config_, built_, *world_);
  const DataPosition position = std::exchange(data_position_, {});
  loader_ = open_loader(position, config_.data, context, *engine_);
  // Ranks with more steps, or with more passes in one, would wait for the others for ever.
  require<ConfigError>(
      !config_.data.batches || engine_->ranks_agree(loader_->fingerprint()),
      "the ranks' files of data.batches (", config_.data.batches.value_or(""),
      ") have different numbers of steps, or other sources in a step; give every rank "
      "as many steps with the same sources");
  if (config_.data.batches) warn_of_same_batches(*loader_, *world_, "data.batches");
  for (std::int64_t i = 0; i < position.batches_behind; ++i) loader_->next();
  data_before_ = loader_->state();
}

}  // namespace floe::train
