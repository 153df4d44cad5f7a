#include "floe/plan/choose/batches.h"

#include <algorithm>
#include <optional>

#include "floe/core/error.h"
#include "floe/core/label.h"
#include "floe/data/loader/loader.h"
#include "floe/data/loader/loader_setup.h"
#include "floe/models/language_model.h"
#include "floe/train/setup/run_setup.h"

namespace floe::plan {
namespace {

constexpr std::int64_t kPreparedLookedAt = 256;

data::LoaderContext context_of(const DataOfRun& of) {
  data::LoaderContext context = train::context_of_model(of.built);
  context.rank = of.rank;
  context.world = of.world_size;
  context.seed = of.seed;
  return context;
}

// The sequences of a source; equal ones in a row are one part.
void add_parts(const data::SourceBatch& batch, BatchParts& parts) {
  for (std::size_t s = 0; s + 1 < batch.sequence_offsets.size(); ++s) {
    const std::int64_t first = batch.sequence_offsets[s], end = batch.sequence_offsets[s + 1];
    BatchPart part;
    part.tokens = end - first;
    part.images = std::min(batch.image_offsets[s + 1] - batch.image_offsets[s], part.tokens);
    part.labels = std::count_if(batch.labels.begin() + first, batch.labels.begin() + end,
                                [](std::int64_t label) { return label != kNoLabel; });
    part.source = batch.source;
    if (part.tokens == 0) continue;
    BatchPart last = parts.empty() ? BatchPart() : parts.back();
    last.sequences = 1;
    if (!parts.empty() && last == part)
      ++parts.back().sequences;
    else
      parts.push_back(part);
  }
}

Passes passes_of(const data::Batch& batch, bool packed) {
  Passes passes(packed ? 1 : batch.sources.size());
  for (std::size_t s = 0; s < batch.sources.size(); ++s)
    add_parts(batch.sources[s], passes[packed ? 0 : s]);
  std::erase_if(passes, [](const BatchParts& parts) { return parts.empty(); });
  return passes;
}

// A batch that is counted in tokens may be one document, as long as the model has positions.
BatchParts of_tokens(std::int64_t tokens, const models::ModelInfo& model) {
  const std::int64_t rows = model.position_rows - model.position_offset;
  const std::int64_t longest = model.position_rows > 0 ? std::min(rows, tokens) : tokens;
  BatchParts parts;
  BatchPart part;
  part.sequences = tokens / longest;
  part.tokens = longest;
  parts.push_back(part);
  if (tokens % longest > 0) parts.push_back({.sequences = 1, .tokens = tokens % longest});
  return parts;
}

std::int64_t tokens_in(const BatchParts& parts) {
  std::int64_t tokens = 0;
  for (const BatchPart& part : parts) tokens += part.sequences * part.tokens;
  return tokens;
}

std::int64_t images_in(const BatchParts& parts) {
  std::int64_t images = 0;
  for (const BatchPart& part : parts) images += part.sequences * part.images;
  return images;
}

// Pass by pass the one with most tokens, then images.
Passes largest_of(const DataSample& sample) {
  Passes largest;
  for (const Passes& passes : sample.batches)
    for (std::size_t p = 0; p < passes.size(); ++p) {
      if (p == largest.size()) largest.push_back(passes[p]);
      const auto size = [](const BatchParts& parts) {
        return std::pair(tokens_in(parts), images_in(parts));
      };
      if (size(passes[p]) > size(largest[p])) largest[p] = passes[p];
    }
  return largest;
}

}  // namespace

int num_passes(const DataOfRun& of) {
  if (of.packed) return 1;
  return static_cast<int>(of.data.batches ? data::num_sources() : of.data.sources().size());
}

Passes largest_passes(const DataOfRun& of) {
  if (of.data.batches) return largest_of(read_sample(of, kPreparedLookedAt));
  const data::LoaderContext context = context_of(of);
  const image::Transform transform(context.transform);
  const models::ModelInfo& model = of.built.model->info();
  Passes passes;
  for (const data::SourcePlan& plan : data::source_plans(of.data, context, transform)) {
    BatchParts parts;
    if (plan.source->info().counts_tokens) {
      parts = of_tokens(plan.per_batch, model);
    } else {
      BatchPart part;
      part.sequences = plan.per_batch;
      part.tokens = plan.rules.max_tokens;
      if (model.position_rows > 0)
        part.tokens = std::min(part.tokens, model.position_rows - model.position_offset);
      part.images = std::min(plan.rules.image_slots, part.tokens);
      require<ConfigError>(part.tokens > 0, "data.", plan.source->id(),
                           " does not say how long its samples are");
      parts.push_back(part);
    }
    if (of.packed && !passes.empty())
      passes[0].insert(passes[0].end(), parts.begin(), parts.end());
    else
      passes.push_back(std::move(parts));
  }
  return passes;
}

DataSample read_sample(const DataOfRun& of, std::int64_t num_batches) {
  DataSample sample;
  data::Loader loader(of.data, context_of(of));
  if (const auto in_epoch = loader.steps_per_epoch())
    num_batches = std::min(num_batches, *in_epoch);
  for (std::int64_t b = 0; b < num_batches; ++b)
    sample.batches.push_back(passes_of(loader.next(), of.packed));
  if (!of.data.batches) sample.counts = loader.counts();
  return sample;
}

}  // namespace floe::plan
