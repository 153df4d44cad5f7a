#include "floe/models/model_input.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"
#include "floe/models/flamingo/media_plan.h"
#include "floe/models/language_model.h"

namespace floe::models {
namespace {

// Calls f(predictor, token, source) for every token whose label some token predicts.
template <class F>
void for_each_target(const PackedBatch& batch, LabelRule rule, F&& f) {
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  const auto* source = batch.source.const_data_ptr<std::int64_t>();
  const bool* attended = batch.attended.defined() ? batch.attended.const_data_ptr<bool>() : nullptr;
  const std::int64_t before = rule == LabelRule::next_token ? 1 : 0;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s)
    for (std::int64_t i = offsets[s] + before; i < offsets[s + 1]; ++i) {
      if (labels[i] == kNoLabel) continue;
      // Padding before the first token predicts nothing: without padding there is nobody to do it.
      if (attended && !attended[i - before] && attended[i]) continue;
      f(i - before, i, source[s]);
    }
}

std::vector<std::int64_t> count_targets(const PackedBatch& batch, LabelRule rule,
                                        std::int64_t num_sources) {
  std::int64_t most = num_sources;
  const auto* source = batch.source.const_data_ptr<std::int64_t>();
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) most = std::max(most, source[s] + 1);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(most), 0);
  for_each_target(batch, rule, [&](std::int64_t, std::int64_t, std::int64_t from) {
    ++counts[static_cast<std::size_t>(from)];
  });
  return counts;
}

// What a labelled token of each source counts.
std::vector<double> shares_of(const LossRule& rule, const std::vector<std::int64_t>& labels) {
  const auto at_source = [](const std::vector<double>& values, std::size_t s, double otherwise) {
    return s < values.size() ? values[s] : otherwise;
  };
  std::vector<double> shares;
  for (std::size_t s = 0; s < labels.size(); ++s) {
    const double count = static_cast<double>(labels[s]);
    shares.push_back(at_source(rule.weight, s, 1) /
                     std::max(at_source(rule.divisor, s, count), 1.0));
  }
  return shares;
}

void find_targets(const PackedBatch& batch, LabelRule rule, const InputOptions& options,
                  ModelInput& input) {
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> predictors, targets, sources;
  for_each_target(batch, rule,
                  [&](std::int64_t predictor, std::int64_t token, std::int64_t source) {
                    predictors.push_back(predictor);
                    targets.push_back(labels[token]);
                    sources.push_back(source);
                  });
  input.labels_of_source = count_targets(batch, rule, options.num_sources);
  const std::vector<double> shares = shares_of(options.loss, input.labels_of_source);
  std::vector<float> weights;
  for (const std::int64_t s : sources)
    weights.push_back(static_cast<float>(shares[static_cast<std::size_t>(s)]));
  if (options.rounded) {
    // In eighths of all tokens: the share of those with a label is nearly always the same.
    const std::int64_t step = std::max<std::int64_t>(batch.num_tokens() / 8, 1);
    const auto size = static_cast<std::size_t>((std::ssize(targets) + step - 1) / step * step);
    predictors.resize(size, 0);
    targets.resize(size, 0);
    weights.resize(size, 0);
    sources.resize(size, std::ssize(shares));
  }
  input.predictors = to_device(at::tensor(predictors, at::kLong), options.device);
  input.targets = to_device(at::tensor(targets, at::kLong), options.device);
  input.target_sources = to_device(at::tensor(sources, at::kLong), options.device);
  input.target_weights = to_device(at::tensor(weights, at::kFloat), options.device);
  input.z_loss = options.loss.z_loss;
}

void check_values(const PackedBatch& batch, const ModelInfo& info) {
  if (batch.num_tokens() == 0) return;
  const auto check = [&](const at::Tensor& values, const char* what) {
    for (const at::Tensor& extreme : {values.min(), values.max()}) {
      const auto value = extreme.item<std::int64_t>();
      require<DataError>(value >= 0 && value < info.vocab, what, " ", value,
                         " lies outside of the model's vocabulary of ", info.vocab,
                         "; the data was made with another tokenizer");
    }
  };
  check(batch.ids, "token");
  check(batch.labels.masked_fill(batch.labels.eq(kNoLabel), 0), "label");
  if (info.position_rows == 0) return;
  const auto last = batch.positions.max().item<std::int64_t>();
  require<DataError>(last + info.position_offset < info.position_rows, "a sequence has ", last + 1,
                     " tokens; the model has ", info.position_rows - info.position_offset,
                     " positions");
}

// Who looks at which image, and the images with the zeros that are looked at behind them.
void take_images(const LanguageModel& model, const PackedBatch& batch, const InputOptions& options,
                 BatchContext& context, ModelInput& input) {
  const at::Tensor times =
      options.media_times.defined() ? options.media_times : media_times(batch, model.media_token());
  const MediaPlan::Rule rule{model.only_immediate_media(), options.rounded, options.first_images,
                             options.media_cache};
  context.media =
      std::make_shared<const MediaPlan>(batch, context.segments, times, rule, options.device);
  input.images = batch.images.to(options.device, options.dtype, /*non_blocking=*/true);
  const std::int64_t counted = options.first_images.defined()
                                   ? batch.num_images()
                                   : batch.image_offsets[-1].item<std::int64_t>();
  const std::int64_t zeros =
      counted - batch.num_images() + (context.media->needs_zero_image() ? 1 : 0);
  if (zeros <= 0) return;
  const std::int64_t side = model.image_size();
  const at::Tensor zero = at::zeros({zeros, 3, side, side}, input.images.options());
  input.images = batch.num_images() == 0 ? zero : at::cat({input.images, zero});
}

struct Padding {
  std::int64_t sequences = 1, tokens = 0, images = 0;
};

std::int64_t longest_sequence(const PackedBatch& batch) {
  return batch.num_sequences() == 0 ? 0 : batch.sequence_offsets.diff().max().item<std::int64_t>();
}

Padding padding_for(const PackedBatch& batch, bool with_images) {
  Padding padding;
  std::int64_t for_images = 0;  // tokens, one for each image of padding
  if (with_images) {
    const std::int64_t images = bucket_size(batch.num_images());
    padding.images = images - batch.num_images();
    for_images = bucket_step(images);
  }
  const std::int64_t tokens = bucket_size(batch.num_tokens() + for_images);
  padding.tokens = tokens - batch.num_tokens();
  // However much is missing, no sequence of padding is longer than the longest one counts.
  const std::int64_t longest = std::max<std::int64_t>(bucket_size(longest_sequence(batch)), 1);
  padding.sequences = (bucket_step(tokens) + for_images + longest - 1) / longest;
  return padding;
}

}  // namespace

nn::BatchParts ModelInput::parts(bool with_places) const {
  require<Error>(context && !context->cache, "only a training pass has parts that can be listed");
  if (with_places) context->segments->make_places();
  if (with_places && context->media) context->media->make_buckets();
  nn::BatchParts parts;
  for (const at::Tensor& tensor :
       {ids, images, predictors, targets, target_weights, target_sources, context->positions,
        context->rotary.cos, context->rotary.sin, context->rule.slopes})
    parts.add(tensor);
  for (const at::Tensor& mask : context->masks) parts.add(mask);
  context->segments->add_parts(parts);
  if (context->media) context->media->add_parts(parts);
  parts.add(static_cast<std::int64_t>(labels_of_source.size()));
  parts.add(std::bit_cast<std::int64_t>(z_loss));
  return parts;
}

std::vector<std::int64_t> count_targets(const LanguageModel& model, const PackedBatch& batch,
                                        std::int64_t num_sources) {
  return count_targets(batch, model.info().labels, num_sources);
}

std::shared_ptr<const ModelInput> prepare(const LanguageModel& model, const PackedBatch& given,
                                          const InputOptions& options) {
  const PackedBatch batch = options.rounded ? rounded(given, model.media_token()) : given;
  const at::Device device = options.device;
  check_values(batch, model.info());
  auto input = std::make_shared<ModelInput>();
  const auto segments = std::make_shared<const nn::Segments>(batch.sequence_offsets, batch.attended,
                                                             device, options.rounded);
  input->ids = to_device(batch.ids.to(at::kLong), device);
  const at::Tensor positions = to_device(batch.positions.to(at::kLong), device);
  auto context = std::make_shared<BatchContext>(
      model.context(segments, positions, options.cache, options.dtype));
  if (model.media_token() >= 0) take_images(model, batch, options, *context, *input);
  input->context = std::move(context);
  find_targets(batch, model.info().labels, options, *input);
  return input;
}

PackedBatch from_rows(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& labels,
                      const at::Tensor& vision, bool keep_padding, std::int64_t source) {
  require<DataError>(ids.dim() == 2 && mask.sizes() == ids.sizes() &&
                         (!labels.defined() || labels.sizes() == ids.sizes()),
                     "ids, mask and labels must have one shape [B, T], not [", join(ids.sizes()),
                     "], [", join(mask.sizes()), "]",
                     labels.defined() ? str(" and [", join(labels.sizes()), "]") : "");
  const std::int64_t rows = ids.size(0), length = ids.size(1);
  const at::Tensor real = mask.ne(0);
  PackedBatch batch;
  const at::Tensor kept = keep_padding ? at::ones_like(real) : real;
  const auto take = [&](const at::Tensor& from) {
    return from.to(at::kLong).masked_select(kept).contiguous();
  };
  batch.ids = take(ids);
  batch.labels = labels.defined() ? take(labels) : at::full_like(batch.ids, kNoLabel);
  // Padded places count on from what is before them: position 0 at the left.
  const at::Tensor place = at::arange(length, at::kLong).expand({rows, length});
  batch.positions = take(at::where(real, real.cumsum(1) - 1, place));
  batch.sequence_offsets =
      at::cat({at::zeros({1}, at::kLong), kept.sum(1).cumsum(0)}).to(at::kLong).contiguous();
  if (keep_padding && !real.all().item<bool>()) batch.attended = real.reshape({-1}).contiguous();
  batch.source = at::full({rows}, source, at::kLong);
  const std::int64_t slots = vision.defined() ? vision.size(1) : 0;
  if (vision.defined()) {
    require<DataError>(vision.dim() == 5 && vision.size(0) == rows, "images must have the shape [",
                       rows, ", slots, 3, H, W], not [", join(vision.sizes()), "]");
    batch.images = vision.flatten(0, 1).contiguous();
  } else {
    batch.images = at::zeros({0, 3, 1, 1});
  }
  batch.image_offsets = at::arange(rows + 1, at::kLong) * slots;
  for (std::int64_t row = 0; row < rows; ++row) batch.sample_keys.push_back(str("row ", row));
  return batch;
}

PackedBatch concatenate(const PackedBatch& a, const PackedBatch& b) {
  const auto follow = [](const at::Tensor& x, const at::Tensor& y) {
    return at::cat({x, y.narrow(0, 1, y.numel() - 1) + x[-1]});
  };
  const auto slots = [](const PackedBatch& batch) {
    return batch.image_slots.defined() ? batch.image_slots : batch.image_offsets.diff();
  };
  const auto attended = [](const PackedBatch& batch) {
    return batch.attended.defined() ? batch.attended : at::ones_like(batch.ids, at::kBool);
  };
  PackedBatch both;
  both.ids = at::cat({a.ids, b.ids});
  both.positions = at::cat({a.positions, b.positions});
  both.labels = at::cat({a.labels, b.labels});
  both.source = at::cat({a.source, b.source});
  both.sequence_offsets = follow(a.sequence_offsets, b.sequence_offsets);
  both.image_offsets = follow(a.image_offsets, b.image_offsets);
  both.images = a.num_images() == 0   ? b.images
                : b.num_images() == 0 ? a.images
                                      : at::cat({a.images, b.images});
  both.image_slots = at::cat({slots(a), slots(b)});
  if (a.attended.defined() || b.attended.defined())
    both.attended = at::cat({attended(a), attended(b)});
  both.sample_keys = a.sample_keys;
  both.sample_keys.insert(both.sample_keys.end(), b.sample_keys.begin(), b.sample_keys.end());
  return both;
}

PackedBatch rounded(const PackedBatch& batch, std::int64_t media_token) {
  const bool with_images = media_token >= 0;
  const Padding padding = padding_for(batch, with_images);
  std::vector<std::int64_t> ids, lengths, images;
  const std::int64_t text = media_token == 0 ? 1 : 0;
  std::int64_t tokens_left = padding.tokens, images_left = padding.images;
  for (std::int64_t left = padding.sequences; left > 0; --left) {
    const std::int64_t tokens = tokens_left / left, own = std::min(images_left, tokens);
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(i < own ? media_token : text);
    lengths.push_back(tokens);
    images.push_back(own);
    tokens_left -= tokens;
    images_left -= own;
  }
  const auto longs = [](const std::vector<std::int64_t>& v) { return at::tensor(v, at::kLong); };
  const auto counted_on = [&](const at::Tensor& offsets, const std::vector<std::int64_t>& sizes) {
    return at::cat({offsets, longs(sizes).cumsum(0) + offsets[-1]});
  };
  PackedBatch result = batch;
  result.ids = at::cat({batch.ids, longs(ids)});
  result.positions = at::cat({batch.positions, at::zeros({padding.tokens}, at::kLong)});
  result.labels = at::cat({batch.labels, at::full({padding.tokens}, kNoLabel, at::kLong)});
  result.source = at::cat({batch.source, at::zeros({padding.sequences}, at::kLong)});
  result.sequence_offsets = counted_on(batch.sequence_offsets, lengths);
  result.image_offsets = counted_on(batch.image_offsets, images);
  if (batch.image_slots.defined()) result.image_slots = at::cat({batch.image_slots, longs(images)});
  if (batch.attended.defined())
    result.attended = at::cat({batch.attended, at::ones({padding.tokens}, at::kBool)});
  result.sample_keys.insert(result.sample_keys.end(), static_cast<std::size_t>(padding.sequences),
                            "padding");
  return result;
}

}  // namespace floe::models
