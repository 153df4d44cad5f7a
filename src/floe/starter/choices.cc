#include "floe/starter/choices.h"

#include <algorithm>
#include <cmath>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/data/loader/prepared_batches.h"
#include "floe/plan/report.h"
#include "floe/starter/deal.h"
#include "floe/starter/fit.h"
#include "floe/strategy/strategy_config.h"

namespace floe::starter {
namespace {

// Beside model and activations: the driver's own, the communication's, what is lost in pieces.
constexpr double kOfGpu = 0.9;
constexpr std::int64_t kGpuOverhead = 768 * kMiB;
// Of the machine's memory the rest belongs to the system, the page cache and the libraries.
constexpr double kOfHost = 0.8;
constexpr std::int64_t kProcessOverhead = 512 * kMiB;
constexpr double kHostOfGpu = 2;
// A processor is slow: there batches are this much smaller than a source's default.
constexpr std::int64_t kCpuFraction = 8;
constexpr std::int64_t kLeastTokens = 64;  // of a batch that counts tokens
constexpr std::int64_t kMostAccumulation = 16;
constexpr std::int64_t kShortEpoch = 500;  // steps below which one epoch teaches little
constexpr std::int64_t kUnknownSteps = 1000;
constexpr std::int64_t kMostThreads = 16;
constexpr std::int64_t kMostCommandWorkers = 4;

// One way to place the model.
struct Candidate {
  bool lora = false;
  shard::Strategy sharding = shard::Strategy::no_shard;
  bool recompute = false, offload = false;
  DType dtype = DType::f32;
};

// Those that move fewest bytes first.
std::vector<Candidate> placements(bool lora, bool on_gpu, bool alone) {
  using enum shard::Strategy;
  std::vector<Candidate> all;
  for (const DType dtype :
       on_gpu ? std::vector{DType::bf16} : std::vector{DType::f32, DType::bf16}) {
    const auto add = [&](shard::Strategy sharding, bool recompute) {
      all.push_back({lora, sharding, recompute, false, dtype});
    };
    add(no_shard, false);
    if (!alone) {
      add(shard_grad_op, false);
      add(full_shard, false);
    }
    add(alone ? no_shard : full_shard, true);
  }
  return all;
}

// All of a model before its adapters, and both before slices in host memory, which are slow.
std::vector<Candidate> candidates(const ModelFacts& model, const Wishes& wishes, bool on_gpu,
                                  bool alone) {
  const bool may_adapt = !model.is_flamingo() && !model.lora_targets.empty() && !wishes.full;
  std::vector<bool> kinds;
  if (!wishes.lora) kinds.push_back(false);
  if (wishes.lora || may_adapt) kinds.push_back(true);
  std::vector<Candidate> all;
  for (const bool lora : kinds)
    for (const Candidate& candidate : placements(lora, on_gpu, alone)) all.push_back(candidate);
  if (on_gpu)
    for (const bool lora : kinds)
      all.push_back({lora, shard::Strategy::full_shard, true, true, DType::bf16});
  return all;
}

// The model, planned in one way or another.
class PlannedModel {
 public:
  PlannedModel(const ModelFacts& model, const config::Value& block)
      : model_(model), block_(block) {}

  plan::PlanReport report(const Candidate& candidate, std::int64_t ranks) {
    plan::PlanSubject subject = subject_of(candidate.lora);
    subject.world_size = static_cast<int>(ranks);
    subject.strategy.sharding = candidate.sharding;
    subject.strategy.cpu_offload = candidate.offload;
    subject.strategy.mixed_precision.param = candidate.dtype;
    if (candidate.recompute) subject.strategy.activation_checkpointing = could_recompute();
    return plan::make_report(std::move(subject));
  }

  // The units outside of the image tower, which has no backward.
  const std::vector<std::string>& could_recompute() {
    if (!classes_.empty()) return classes_;
    const StrategyConfig defaults;
    const plan::PlanReport report = plan::make_report(subject_of(false));
    for (const std::string& name : defaults.units)
      for (const shard::PlannedUnit& unit : report.plan.units)
        if (unit.class_name == name && !unit.name.starts_with("vision_encoder.")) {
          classes_.push_back(name);
          break;
        }
    return classes_;
  }

 private:
  const plan::PlanSubject& subject_of(bool lora) {
    std::optional<plan::PlanSubject>& subject = lora ? with_adapters_ : whole_;
    if (subject) return *subject;
    config::Value tree{config::Map()}, train{config::Map()};
    (*train.as<config::Map>())["steps"] = config::Value(std::int64_t{1});
    config::Map& root = *tree.as<config::Map>();
    root["model"] = block_;
    root["train"] = std::move(train);
    if (lora) (*root["model"].as<config::Map>())["lora"] = lora_block(model_);
    config::Layers layers;
    layers.base = std::move(tree);
    return subject.emplace(plan::subject_of(plan::load_run_plan_config(layers).config));
  }

  const ModelFacts& model_;
  config::Value block_;
  std::optional<plan::PlanSubject> whole_, with_adapters_;
  std::vector<std::string> classes_;
};

// What a batch of these sizes brings: some of its samples may all be long.
BatchLoad load_of(const std::vector<DataFacts>& data, const std::vector<SourceChoice>& sources) {
  BatchLoad load;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const DataFacts& facts = data[i];
    if (!facts.source) {
      load.tokens += static_cast<double>(facts.step_tokens);
      load.images += static_cast<double>(facts.step_images);
      continue;
    }
    const auto batch = static_cast<double>(sources[i].batch);
    if (facts.source->info().counts_tokens) {
      load.tokens += batch;
      continue;
    }
    const auto most = static_cast<double>(facts.most_tokens);
    load.tokens += std::min(batch * most, 1.5 * batch * facts.mean_tokens + most);
    const auto most_images = static_cast<double>(facts.most_images);
    load.images += std::min(batch * most_images, 1.5 * batch * facts.mean_images + most_images);
  }
  return load;
}

class Chooser {
 public:
  Chooser(const ModelFacts& model, const config::Value& block, const std::vector<DataFacts>& data,
          const Machine& machine, const Wishes& wishes)
      : model_(model), data_(data), machine_(machine), wishes_(wishes), planned_(model, block) {}

  Choices choose() {
    choose_ranks();
    choose_reading();
    choose_placement();
    choose_length();
    return chosen_;
  }

 private:
  bool prepared() const { return !data_.front().source; }

  void choose_ranks() {
    chosen_.on_gpu = machine_.num_gpus > 0 || wishes_.gpu_memory.has_value();
    const std::int64_t gpus = std::max<std::int64_t>(1, machine_.num_gpus);
    chosen_.ranks = wishes_.ranks.value_or(gpus);
    if (!prepared()) return;
    if (!wishes_.ranks) chosen_.ranks = std::min(gpus, data_.front().num_files);
    data::require_file_per_rank(data_.front().pattern, "init: --data", chosen_.ranks);
  }

  Deal deal() const { return {chosen_.ranks, chosen_.workers, chosen_.resampled}; }

  void choose_reading() {
    if (!wishes_.gpu_memory)
      chosen_.threads = std::clamp<std::int64_t>(machine_.cores / chosen_.ranks, 1, kMostThreads);
    if (prepared()) return;
    std::size_t fewest = SIZE_MAX;
    bool commands = false;
    for (const DataFacts& facts : data_) {
      fewest = std::min(fewest, facts.num_shards);
      commands = commands || facts.commands;
    }
    if (commands)
      chosen_.workers = std::clamp<std::int64_t>(static_cast<std::int64_t>(fewest) / chosen_.ranks,
                                                 1, kMostCommandWorkers);
    for (const DataFacts& facts : data_)
      if (pass_of_stream(facts, deal()) == 0) chosen_.resampled = true;
    if (chosen_.resampled) chosen_.workers = 1;
  }

  std::int64_t memory_of_rank() const {
    if (chosen_.on_gpu) {
      const std::int64_t memory = wishes_.gpu_memory.value_or(machine_.gpu_memory);
      return static_cast<std::int64_t>(kOfGpu * static_cast<double>(memory)) - kGpuOverhead;
    }
    std::int64_t buffers = 0;  // of the shuffle: undecoded samples
    for (const DataFacts& facts : data_)
      if (facts.source)
        buffers += facts.commands ? ShuffleConfig().memory.bytes
                                  : std::min(ShuffleConfig().memory.bytes, facts.bytes);
    const auto host = static_cast<std::int64_t>(kOfHost * static_cast<double>(machine_.memory));
    return host / chosen_.ranks - buffers - kProcessOverhead;
  }

  // ---- batches ----

  // What one stream fills: a run stops when a whole pass over its shards does not make a batch.
  std::int64_t capacity_of(const DataFacts& facts) const {
    std::int64_t filled = pass_of_stream(facts, deal());
    if (facts.kind == "mmc4") filled /= 2;  // where a coin decides, a stream may be unlucky
    return std::max<std::int64_t>(1, filled);
  }

  std::int64_t least_of(const DataFacts& facts) const {
    return facts.source->info().counts_tokens ? kLeastTokens : 1;
  }

  std::vector<SourceChoice> wanted_batches() const {
    std::vector<SourceChoice> sources;
    for (const DataFacts& facts : data_) {
      SourceChoice& source = sources.emplace_back();
      if (!facts.source) continue;
      DataConfig defaults;
      facts.source->set(defaults);
      source.wanted = facts.source->per_batch(defaults);
      if (!chosen_.on_gpu)
        source.wanted = std::max<std::int64_t>(least_of(facts), source.wanted / kCpuFraction);
      source.capacity = capacity_of(facts);
      source.batch = std::min(source.wanted, source.capacity);
      // A document is cut where a batch ends, so this bounds the sequences, too.
      if (facts.source->info().counts_tokens && model_.context > 0 &&
          (model_.learned_positions || facts.most_tokens > model_.context))
        source.batch = std::min(source.batch, model_.context);
      source.batch =
          std::max<std::int64_t>(facts.source->info().counts_tokens ? 2 : 1, source.batch);
    }
    return sources;
  }

  // Half as large; false: they are as small as they can be.
  bool halve(std::vector<SourceChoice>& sources) const {
    bool smaller = false;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!data_[i].source) continue;
      const std::int64_t least = std::min(sources[i].batch, least_of(data_[i]));
      const std::int64_t half = std::max(least, sources[i].batch / 2);
      smaller = smaller || half < sources[i].batch;
      sources[i].batch = half;
    }
    return smaller;
  }

  // ---- memory ----

  struct Placed {
    Candidate candidate;
    std::vector<SourceChoice> sources;
    Need need;
    int halvings = 0;
    std::int64_t trainable = 0, frozen = 0;
  };

  // With the largest batches that fit, or the smallest there are.
  Placed place(const Candidate& candidate, std::int64_t ranks) {
    const plan::PlanReport report = planned_.report(candidate, ranks);
    Placed placed{.candidate = candidate,
                  .sources = wanted_batches(),
                  .trainable = report.trainable_numel,
                  .frozen = report.frozen_numel};
    placed.need.model = device_bytes(report);
    (chosen_.on_gpu ? placed.need.host : placed.need.copies) = saved_bytes(report);
    placed.need.host += report.holdings.host_peak;
    placed.need.available = memory_of_rank();
    for (;;) {
      placed.need.activations = activation_bytes(report, load_of(data_, placed.sources));
      if (placed.need.fits() || !halve(placed.sources)) return placed;
      ++placed.halvings;
    }
  }

  // Whether what is offloaded fits beside the other ranks of the machine. Where GPUs are not here,
  // so much host memory is taken for granted as machines with GPUs have.
  bool fits(const Placed& placed) const {
    if (!placed.need.fits() || !placed.candidate.offload) return placed.need.fits();
    const double of_rank =
        wishes_.gpu_memory
            ? kHostOfGpu * static_cast<double>(*wishes_.gpu_memory)
            : kOfHost * static_cast<double>(machine_.memory) / static_cast<double>(chosen_.ranks);
    return static_cast<double>(placed.need.host) <= of_rank;
  }

  // The first that fits with batches not much smaller than wanted, else the first that fits, else
  // the one that needs least.
  void choose_placement() {
    const bool alone = chosen_.ranks == 1;
    std::optional<Placed> any, least;
    for (const Candidate& candidate : candidates(model_, wishes_, chosen_.on_gpu, alone)) {
      Placed placed = place(candidate, chosen_.ranks);
      const bool does = fits(placed);
      if (does && placed.halvings <= 2) {
        any = std::move(placed);
        break;
      }
      if (does && !any) any = placed;
      if (!least || placed.need.all() < least->need.all()) least = std::move(placed);
    }
    const Placed& best = any ? *any : *least;
    chosen_.lora = best.candidate.lora;
    chosen_.lora_by_need = best.candidate.lora && !wishes_.lora;
    chosen_.sharding = best.candidate.sharding;
    chosen_.offload = best.candidate.offload;
    chosen_.dtype = best.candidate.dtype;
    chosen_.could_recompute = planned_.could_recompute();
    if (best.candidate.recompute) chosen_.recompute = chosen_.could_recompute;
    chosen_.need = best.need;
    chosen_.sources = best.sources;
    chosen_.trainable_numel = best.trainable;
    chosen_.frozen_numel = best.frozen;
    choose_accumulation(best);
    if (!any) chosen_.does_not_fit = advice(best.candidate);
  }

  // So many batches make up for what memory and positions have taken from one.
  void choose_accumulation(const Placed& placed) {
    std::int64_t most = 1;
    for (const SourceChoice& source : placed.sources)
      most = std::max(most, std::min(source.wanted, source.capacity) / source.batch);
    chosen_.accumulation = prepared() ? 1 : std::min(most, kMostAccumulation);
  }

  // From how many ranks on it would fit.
  std::string advice(Candidate candidate) {
    std::string out;
    candidate.sharding = shard::Strategy::full_shard;
    const bool more_memory = chosen_.on_gpu || wishes_.gpu_memory;
    for (std::int64_t ranks = chosen_.ranks * 2; more_memory && ranks <= 4096; ranks *= 2)
      if (fits(place(candidate, ranks))) {
        out = str("over ", ranks, " such ranks it would fit (--ranks ", ranks, ")");
        break;
      }
    if (out.empty()) out = "a machine with more memory, or a smaller model, is needed";
    if (wishes_.full && !model_.is_flamingo()) out += "; without --full, adapters may fit";
    if (!chosen_.on_gpu && chosen_.ranks > 1)
      out += "; ranks on the CPU share the memory of the machine, so fewer of them may help";
    return out;
  }

  // ---- length ----

  void choose_length() {
    if (prepared()) {
      chosen_.batches = data_.front().steps;
    } else {
      std::int64_t batches = 0;
      for (std::size_t i = 0; i < data_.size(); ++i) {
        if (!data_[i].samples || !data_[i].unseen.empty()) {
          batches = -1;
          break;
        }
        batches = std::max(batches, batches_of(i));
      }
      if (batches >= 0)
        chosen_.batches = round_up(std::max<std::int64_t>(1, batches), chosen_.workers);
      set_epochs();
    }
    const std::int64_t per_epoch =
        chosen_.batches ? ceil_div(*chosen_.batches, chosen_.accumulation) : 0;
    chosen_.epochs = per_epoch < kShortEpoch ? 3 : 1;
    chosen_.steps = chosen_.batches
                        ? ceil_div(*chosen_.batches * chosen_.epochs, chosen_.accumulation)
                        : kUnknownSteps;
  }

  // Whole batches of all ranks.
  std::int64_t batches_of(std::size_t i) const {
    return static_cast<std::int64_t>(content_of(data_[i])) /
           (chosen_.sources[i].batch * chosen_.ranks);
  }

  // The same number of batches for every source.
  void set_epochs() {
    if (!chosen_.batches) return;
    for (std::size_t i = 0; i < data_.size(); ++i) {
      SourceChoice& source = chosen_.sources[i];
      source.per_epoch = *chosen_.batches * source.batch * chosen_.ranks;
      source.passes = static_cast<double>(*source.per_epoch) / std::max(1.0, content_of(data_[i]));
    }
  }

  const ModelFacts& model_;
  const std::vector<DataFacts>& data_;
  const Machine& machine_;
  const Wishes& wishes_;
  PlannedModel planned_;
  Choices chosen_;
};

}  // namespace

config::Value lora_block(const ModelFacts& model) {
  config::Map block;
  config::List targets;
  for (const std::string& target : model.lora_targets) targets.emplace_back(target);
  block["targets"] = config::Value(std::move(targets));
  const models::LoraConfig defaults;
  block["rank"] = config::Value(defaults.rank);
  block["alpha"] = config::Value(defaults.alpha);
  return config::Value(std::move(block));
}

Choices choose(const ModelFacts& model, const config::Value& model_block,
               const std::vector<DataFacts>& data, const Machine& machine, const Wishes& wishes) {
  require<ConfigError>(!wishes.lora || !model.lora_targets.empty(),
                       "init: --lora is for decoders, "
                       "and a '",
                       model.family, "' is none; leave it out");
  return Chooser(model, model_block, data, machine, wishes).choose();
}

}  // namespace floe::starter
