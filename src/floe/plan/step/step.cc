#include "floe/plan/step/step.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "floe/core/error.h"
#include "floe/models/language_model.h"
#include "floe/plan/machine/simulate_cores.h"
#include "floe/plan/rehearsal/rehearse.h"
#include "floe/strategy/strategy_options.h"

namespace floe::plan {
namespace {

constexpr std::int64_t kMostOfOne = 100'000'000;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == at)
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c;
  return parts;
}

std::int64_t parse_number(const std::string& part, const std::string& text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  require<ConfigError>(
      error == std::errc() && end == part.data() + part.size() && number >= 0 &&
          number <= kMostOfOne,
      "--batch '", text,
      "' is no batch; say sequences x tokens x images, for example 64x32x1,32x256x6");
  return number;
}

// Tokens that mean nothing; images lie where they would be looked at.
PackedBatch batch_of(const BatchParts& parts, const models::LanguageModel* model) {
  const std::int64_t image = model ? model->media_token() : -1;
  std::vector<std::int64_t> ids, labels, positions, offsets{0}, image_offsets{0}, slots, sources;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const BatchPart& part = parts[p];
    require<ConfigError>(part.images == 0 || image >= 0,
                         "--batch has images, but this model takes none");
    const std::int64_t most = part.labels < 0 ? part.tokens : part.labels;
    for (std::int64_t s = 0; s < part.sequences; ++s) {
      std::int64_t unlabelled = std::max<std::int64_t>(0, part.tokens - part.images - most);
      for (std::int64_t i = 0; i < part.tokens; ++i) {
        const bool here = part.images > 0 && i * part.images % part.tokens < part.images;
        ids.push_back(here ? image : 0);
        labels.push_back(here || unlabelled > 0 ? kNoLabel : 0);
        if (!here) --unlabelled;
        positions.push_back(i);
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
      image_offsets.push_back(image_offsets.back() + part.images);
      slots.push_back(part.images);
      sources.push_back(part.source < 0 ? static_cast<std::int64_t>(p) : part.source);
    }
  }
  PackedBatch batch;
  batch.ids = at::tensor(ids, at::kLong);
  batch.labels = at::tensor(labels, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  batch.sequence_offsets = at::tensor(offsets, at::kLong);
  batch.image_offsets = at::tensor(image_offsets, at::kLong);
  batch.image_slots = at::tensor(slots, at::kLong);
  batch.source = at::tensor(sources, at::kLong);
  const std::int64_t side = model ? model->image_size() : 0;
  batch.images = at::empty({image_offsets.back(), 3, side, side},
                           at::TensorOptions().dtype(at::kBFloat16).device(c10::kMeta));
  batch.sample_keys.assign(slots.size(), "planned");
  return batch;
}

}  // namespace

BatchParts parse_batch(const std::string& text) {
  BatchParts parts;
  for (const std::string& one : split(text, ',')) {
    const std::vector<std::string> numbers = split(one, 'x');
    require<ConfigError>(numbers.size() == 2 || numbers.size() == 3, "--batch '", text,
                         "' is no batch; say sequences x tokens x images, for example "
                         "64x32x1,32x256x6, or 2x4096 without images");
    BatchPart part;
    part.sequences = parse_number(numbers[0], text);
    part.tokens = parse_number(numbers[1], text);
    if (numbers.size() == 3) part.images = parse_number(numbers[2], text);
    require<ConfigError>(part.sequences > 0 && part.tokens > 0 && part.images <= part.tokens,
                         "--batch '", text,
                         "' needs sequences, tokens in each, and at most as many images as tokens");
    parts.push_back(part);
  }
  return parts;
}

std::string text_of(const BatchParts& batch) {
  constexpr std::size_t kMost = 4;
  std::string text;
  std::int64_t sequences = 0, tokens = 0, images = 0;
  for (const BatchPart& part : batch) {
    text += str(text.empty() ? "" : ",", part.sequences, "x", part.tokens);
    if (part.images > 0) text += str("x", part.images);
    sequences += part.sequences;
    tokens += part.sequences * part.tokens;
    images += part.sequences * part.images;
  }
  if (batch.size() <= kMost) return text;
  return str(counted(sequences, "sequence"), ", ", counted(tokens, "token"),
             images > 0 ? str(", ", counted(images, "image")) : "");
}

std::int64_t StepReport::needed() const {
  const Machine& machine = settings.machine;
  const auto of_rank =
      static_cast<std::int64_t>(static_cast<double>(peak()) * (1 + machine.slack)) +
      machine.context.bytes;
  return of_rank * (machine.of_cores() ? CoresOfRank(machine, world_size).ranks : 1);
}

std::int64_t StepReport::kept() const {
  const std::vector<std::int64_t>& units = trace.memory.kept_by_unit;
  return std::accumulate(units.begin(), units.end(), trace.memory.kept_outside);
}

double StepReport::tokens_per_second() const {
  return static_cast<double>(trace.tokens) * trace.passes * world_size / time.seconds;
}

double StepReport::utilisation() const { return time.flops / (time.seconds * tflops * 1e12); }

StepReport plan_step(const PlanReport& report, const StepSettings& settings) {
  const PlanSubject& subject = report.subject;
  require<ConfigError>(subject.sets.size() < 2,
                       "a step of a run with several phases cannot be rehearsed; plan each phase "
                       "by itself, with train.trainable");
  shard::ShardOptions options = strategy::shard_options_of(subject.strategy);
  options.passes_per_update = subject.passes_per_update;
  options.trainable = subject.trainable;
  require<ConfigError>(!options.frozen.compute || settings.machine.fp8_tflops > 0,
                       "strategy.frozen.compute is fp8, but '", settings.machine.name,
                       "' has no products in 8 bits (its fp8_tflops is 0); leave "
                       "strategy.frozen.compute out, or take another machine");
  const shard::Policy policy = strategy::policy_of(subject.strategy, *subject.model);
  const auto* model = dynamic_cast<const models::LanguageModel*>(subject.model.get());

  StepReport step;
  step.settings = settings;
  step.world_size = subject.world_size;
  const auto node = static_cast<int>(settings.machine.gpus_per_node);
  step.num_nodes = (subject.world_size + node - 1) / node;
  step.tflops = settings.machine.bf16_tflops;
  if (settings.machine.of_cores()) {
    const CoresOfRank rank(settings.machine, subject.world_size);
    const bool wide =
        strategy::scalar_type_of(subject.strategy.mixed_precision.param) == at::kFloat;
    step.tflops = (wide ? settings.machine.fp32_tflops : settings.machine.bf16_tflops) * rank.rate *
                  std::min(rank.threads * 1.0, rank.cores / rank.ranks);
  }
  step.optimizer_state = report.holdings.held.optimizer_state;
  const RehearsedBatch batch{batch_of(settings.batch, model),
                             strategy::scalar_type_of(subject.strategy.mixed_precision.param)};
  step.trace = strategy::in_words_of_config([&] {
    return rehearse(
        {subject.model, policy, options, subject.world_size, settings.machine.of_cores()}, batch);
  });
  step.host_bytes = step.trace.memory.host_peak;
  // Of an optimizer with n values: these and the masters are read and written, gradients read.
  const UpdateCost update{step.trace.gradient_numel, 4.0 * (3 + 2 * subject.values_per_element),
                          subject.world_size};
  step.time = simulate(step.trace, update, settings.machine);
  return step;
}

}  // namespace floe::plan
