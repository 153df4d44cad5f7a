#include "floe/data/sources/source_plan.h"

#include "floe/core/error.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/data/sources/text.h"

namespace floe::data {
namespace {

SourcePlan plan_of(SourceId id, const std::string& key, const std::string& text) {
  SourcePlan plan{id, key, text};
  try {
    plan.shards = expand_shards(text);
  } catch (const ConfigError& error) {  // it names the key that it is about
    throw ConfigError(str(key, ": ", error.what()));
  }
  return plan;
}

}  // namespace

std::vector<SourcePlan> source_plans(const DataConfig& config, const LoaderContext& context,
                                     const image::Transform& transform) {
  const bool corrected = config.rules == Rules::corrected;
  std::vector<SourcePlan> plans;
  if (config.laion || config.mmc4 || config.text)
    require<ConfigError>(context.tokenizer, "data: there is no tokenizer to read samples with");
  if (const auto& laion = config.laion) {
    SourcePlan& plan =
        plans.emplace_back(plan_of(SourceId::laion, context.keys.laion, laion->shards));
    plan.rule.samples = plan.per_batch = laion->batch_size;
    plan.image_slots = 1;
    plan.rule.flips = corrected ? BatchRule::Flips::of_sample : BatchRule::Flips::of_batch;
    plan.samples_per_epoch = laion->num_samples;
    plan.maker = std::make_shared<LaionMaker>(*context.tokenizer, context.tokens, transform,
                                              LaionSettings{.rules = config.rules});
  }
  if (const auto& mmc4 = config.mmc4) {
    SourcePlan& plan = plans.emplace_back(plan_of(SourceId::mmc4, context.keys.mmc4, mmc4->shards));
    plan.rule.samples = plan.per_batch = mmc4->batch_size;
    plan.image_slots = mmc4->max_images;
    plan.rule.flips = BatchRule::Flips::of_sample;
    plan.samples_per_epoch = mmc4->num_samples;
    plan.maker = std::make_shared<Mmc4Maker>(
        *context.tokenizer, context.tokens, transform,
        Mmc4Settings{config.rules, mmc4->text_sim_threshold, mmc4->min_images, mmc4->max_images,
                     mmc4->max_tokens});
  }
  if (const auto& text = config.text) {
    SourcePlan& plan = plans.emplace_back(plan_of(SourceId::text, context.keys.text, text->files));
    plan.rule.tokens = plan.per_batch = text->tokens;
    plan.samples_per_epoch = text->num_tokens;
    plan.maker = std::make_shared<TextMaker>(*context.tokenizer);
    plan.open = open_text;
  }
  for (SourcePlan& plan : plans) plan.rule.max_bad_fraction = config.max_bad_fraction;
  return plans;
}

}  // namespace floe::data
