#include "floe/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>

#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/data/packing.h"
#include "floe/train/parallelize.h"
#include "floe/train/precision.h"
#include "floe/train/run_setup.h"
#include "floe/train/validation.h"

namespace floe::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

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

}  // namespace

Trainer::Trainer(const config::Loaded<RunConfig>& loaded, std::shared_ptr<comm::World> world,
                 const std::atomic<bool>& stop)
    : config_(loaded.config),
      world_(std::move(world)),
      stop_requested_(stop),
      stream_(graph_stream(config_, *world_)),
      built_(models::build_model(config_.model, config_.run.seed)),
      loss_scale_(first_loss_scale(config_).value_or(0)) {
  reporter_ = std::make_unique<Reporter>(loaded, *world_);
  engine_ = parallelize(config_, built_, world_);
  built_.module->train();
  if (config_.strategy.cuda_graphs)
    graphs_ = std::make_unique<StepGraphs>(*built_.model, *engine_, graph_options(config_));
  phases_ = std::make_unique<Phases>(config_, *engine_);
  noise_.resize(phases_->turns().size());
  if (config_.train.ema.decay)
    ema_ = std::make_unique<optim::Ema>(*engine_, *config_.train.ema.decay);
  checkpoints_ = std::make_unique<checkpoint::Checkpointer>(
      checkpointer_options(config_, built_, *engine_, *phases_, ema_.get()));
  resume();
  open_data();
  total_steps_ = count_steps(config_, phases_->turns(), step_, *loader_);
  phases_->plan_rates(total_steps_);
  validation_ = make_validation(config_, built_, *engine_);
  // Micro-batches and passes over other sources would be reductions of other batches.
  measures_noise_ =
      world_->size() > 1 && config_.train.gradient_accumulation == 1 &&
      (config_.train.packed || (!config_.data.batches && config_.data.sources().size() == 1));
  reporter_->begin(step_, total_steps_, *engine_, phases_->optimizers(), built_);
}

Trainer::~Trainer() = default;

void Trainer::run() {
  try {
    while (!finished() && !stopping_) {
      take_turn();
      StepRecord record;
      const auto begin = Clock::now();
      if (!train_step(record)) continue;
      record.step_s = seconds_since(begin);
      after_step(record);
    }
    if (stopped() && saved_step_ != step_) save();  // the last step was a skipped one
    checkpoints_->wait();
    tell_saved();
    if (graphs_) log::info(graphs_->summary());
    reporter_->end(loader_->report(), step_, stopped());
  } catch (...) {
    reporter_->failed();
    if (config_.checkpoint.on_exception && loader_)
      checkpoints_->emergency(step_, shared_state(), data_before_.save());
    throw;
  }
}

void Trainer::take_turn() {
  PhaseTurns& turns = phases_->turns();
  const std::string from = turns.name();
  if (!turns.pass_on()) return;
  const std::vector<optim::Optimizer*> optimizers = phases_->optimizers();
  reporter_->before_switch(*engine_, optimizers, ema_.get());
  const auto begin = Clock::now();
  {
    const auto updating = checkpoints_->updating();
    engine_->activate(turns.current());
  }
  reporter_->switched({step_, from, turns.name(), seconds_since(begin)}, *engine_, optimizers,
                      ema_.get());
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
  const auto begin = Clock::now();
  data_before_ = loader_->state();
  at::manual_seed(dropout_seed());
  const std::vector<PackedBatch> batches = read_batches();
  record.data_s = seconds_since(begin);
  reporter_->mark(MemoryPoint::batch_start);

  std::vector<double> divisors;
  if (config_.train.loss_mean == TrainConfig::LossMean::global) divisors = global_divisors(batches);
  const bool measure = measures_noise_ && (step_ + 1) % config_.log.every_steps == 0;
  if (measure) engine_->measure_local_gradients(true);
  StepSums sums;
  for (const PackedBatch& batch : batches) forward_backward(batch, divisors, sums);

  std::vector<double> values = sums.values(count_bad(*loader_), stop_requested_);
  if (measure) values.push_back(engine_->take_local_square());
  const shard::Agreement all = engine_->agree(/*locally_finite=*/true, values, sums.losses());
  engine_->measure_local_gradients(false);
  const StepTotals totals(all.sums);
  ++attempts_;
  stopping_ = totals.stop;
  const double scale = loss_scale_.value();
  loss_scale_.update(all.finite);
  if (!all.finite) {
    skip(batches, all.locally_finite);
    return false;
  }
  skipped_in_a_row_ = 0;

  const double norm = all.gradient_norm / scale;
  if (loss_scale_.active()) record.loss_scale = scale;
  if (measure) {
    double samples = 0;
    for (const auto& source : totals.sources) samples += static_cast<double>(source.samples);
    const int ranks = world_->size();
    NoiseScale& noise = noise_[engine_->active_set()];
    noise.add(totals.rest[0] / ranks / (scale * scale), norm * norm, samples / ranks, ranks);
    record.noise_scale = noise.value();
  }
  record.gradient_norm = norm;
  update(norm, 1 / scale, record);
  record.step = step_;
  if (phases_->several()) record.phase = phases_->turns().name();
  record.epoch = epoch_;
  record.sources = totals.sources;
  record.tokens = totals.tokens;
  record.bad_samples = totals.bad_samples;
  record.skipped = skipped_;
  return true;
}

std::vector<PackedBatch> Trainer::read_batches() {
  std::vector<PackedBatch> batches;
  epoch_ended_ = false;
  for (std::int64_t i = 0; i < config_.train.gradient_accumulation; ++i) {
    const data::Step step = loader_->next();
    epoch_ = step.epoch;
    epoch_ended_ = epoch_ended_ || step.ends_epoch;
    if (config_.train.packed)
      batches.push_back(data::pack(step));
    else
      for (std::size_t b = 0; b < step.batches.size(); ++b) batches.push_back(data::pack(step, b));
  }
  return batches;
}

void Trainer::forward_backward(const PackedBatch& batch, const std::vector<double>& divisors,
                               StepSums& sums) {
  models::InputOptions options;
  options.device = world_->device();
  options.dtype = compute_dtype(config_);
  options.num_sources = static_cast<std::int64_t>(kNumSources);
  options.loss.weight = loss_weights(config_.data);
  options.loss.divisor = divisors;
  options.rounded = graphs_ && graphs_->should_round(batch);
  const double shares =
      divisors.empty() ? static_cast<double>(config_.train.gradient_accumulation) : 1;
  for (double& weight : options.loss.weight) weight *= loss_scale_.value() / shares;

  const auto input = models::prepare(*built_.model, batch, options);
  const auto after_forward = [this] { reporter_->mark(MemoryPoint::after_forward); };
  const PassLosses losses =
      graphs_ ? graphs_->run(input, after_forward) : run_pass(*built_.model, input, after_forward);
  reporter_->mark(MemoryPoint::after_backward);
  sums.add(batch, *input, losses.of_source);
  reporter_->count_work(batch, *input);
}

std::vector<double> Trainer::global_divisors(const std::vector<PackedBatch>& batches) {
  std::vector<double> labels(kNumSources, 0.0);
  for (const PackedBatch& batch : batches) {
    const auto counts = models::count_targets(batch, static_cast<std::int64_t>(kNumSources));
    for (std::size_t s = 0; s < kNumSources; ++s) labels[s] += static_cast<double>(counts[s]);
  }
  const at::Tensor all = at::tensor(labels, at::kDouble).to(world_->device());
  world_->group()->all_reduce(all, comm::Reduce::average, "labelled tokens").wait();
  const at::Tensor means = world_->read(all);
  return {means.const_data_ptr<double>(), means.const_data_ptr<double>() + kNumSources};
}

void Trainer::skip(const std::vector<PackedBatch>& batches, bool finite_here) {
  engine_->clear_gradients();
  ++skipped_;
  ++skipped_in_a_row_;
  const std::string keys =
      finite_here ? "" : str("; the loss of this rank is not: ", keys_of(batches));
  log::warn("step ", step_ + 1, " is skipped on all ranks: a loss or gradient is not finite", keys);
  if (!keys.empty() || world_->rank() == 0) reporter_->skipped(step_ + 1, batches);
  // A scale that is still too large halves itself a few times; that is no fault of the data.
  const bool searching = loss_scale_.active() && loss_scale_.value() > 1;
  require(searching || skipped_in_a_row_ <= config_.train.max_skipped, skipped_in_a_row_,
          " steps in a row had a loss or gradient that is not finite (train.max_skipped is ",
          config_.train.max_skipped,
          "); lower train.optimizer.lr, or look at the samples that the log names");
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
    phases_->update(record.lr, factor);
    if (ema_) ema_->update();
    ++step_;
    data_before_ = loader_->state();
  }
  engine_->clear_gradients();
  reporter_->mark(MemoryPoint::batch_end);
}

void Trainer::after_step(StepRecord& record) {
  const bool last = finished() || stopping_;
  const bool validates = validation_ && step_ % *config_.train.validation.every_steps == 0;
  if (validates || (validation_ && last)) record.others = validation_->run();
  // Not one that a stop asked for: a run in two parts has the same turns as one in one part.
  if (validates) phases_->turns().observe(metrics_of(record));
  if (save_is_due()) {
    save(metrics_of(record));
    record.checkpoint_s = checkpoints_->last_stolen_s();
  }
  reporter_->step(record);
}

bool Trainer::save_is_due() const {
  const CheckpointConfig& config = config_.checkpoint;
  if (finished() || stopping_) return true;
  if (config.every_steps && step_ % *config.every_steps == 0) return true;
  return config.every_epochs && epoch_ended_ && (epoch_ + 1) % *config.every_epochs == 0;
}

void Trainer::save(const std::map<std::string, double>& metrics) {
  checkpoints_->wait();
  tell_saved();
  checkpoints_->save(step_, shared_state(), rank_state(), metrics);
  saved_step_ = step_;
}

void Trainer::tell_saved() {
  const std::string path = checkpoints_->last_saved();
  if (path.empty() || path == told_saved_) return;
  told_saved_ = path;
  reporter_->saved(path);
}

nlohmann::json Trainer::shared_state() const {
  nlohmann::json state{
      {"step", step_},
      {"epoch", epoch_},
      {"attempts", attempts_},
      {"skipped", skipped_},
      {"skipped_in_a_row", skipped_in_a_row_},
      {"total_steps", total_steps_},
      {"loss_scale", {{"scale", loss_scale_.value()}, {"good_steps", loss_scale_.good_steps()}}},
      {"lr_scheduler", {{"last_epoch", step_}, {"base_lr", phases_->base_lr()}}},
      {"world_size", world_->size()},
      {"config", reporter_->config_json()}};
  if (nlohmann::json phases = phases_->save(); !phases.is_null())
    state["phases"] = std::move(phases);
  return state;
}

nlohmann::json Trainer::rank_state() const { return loader_->state().save(); }

void Trainer::resume() {
  const auto restored = checkpoints_->resume(config_.run.resume);
  if (!restored) return;
  const nlohmann::json& state = restored->shared;
  step_ = restored->step;
  epoch_ = state.value("epoch", std::int64_t{0});
  attempts_ = state.value("attempts", step_);
  skipped_ = state.value("skipped", std::int64_t{0});
  skipped_in_a_row_ = state.value("skipped_in_a_row", std::int64_t{0});
  if (const auto scale = state.find("loss_scale"); scale != state.end())
    loss_scale_.restore(scale->value("scale", 1.0), scale->value("good_steps", std::int64_t{0}));
  phases_->restore(state.value("phases", nlohmann::json()));
  data_position_ =
      data_position(*restored, config_.run.folder(), config_.train.gradient_accumulation);
}

void Trainer::open_data() {
  data::LoaderContext context = loader_context(config_, built_, *world_);
  const DataPosition position = std::exchange(data_position_, {});
  loader_ = position.ranks.empty()
                ? std::make_unique<data::Loader>(config_.data, context)
                : std::make_unique<data::Loader>(config_.data, context, position.ranks);
  // Ranks with more steps, or with more passes in one, would wait for the others for ever.
  require<ConfigError>(
      !config_.data.batches || engine_->all_ranks_say(loader_->fingerprint()),
      "the ranks' files of data.batches (", config_.data.batches.value_or(""),
      ") have different numbers of steps, or other sources in a step; give every rank "
      "as many steps with the same sources");
  for (std::int64_t i = 0; i < position.batches_behind; ++i) loader_->next();
  data_before_ = loader_->state();
}

}  // namespace floe::train
