#include "flamingo_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/models/decoders/decoder.h"
#include "floe/models/lora/lora.h"
#include "floe/models/registry.h"

namespace floe::bench {
namespace {

std::int64_t value_or(const Json& json, const char* key, std::int64_t otherwise) {
  return json.contains(key) ? json.at(key).get<std::int64_t>() : otherwise;
}

// One data set's part of a step.
class RandomSequences {
 public:
  RandomSequences(const Json& config, std::size_t source, std::int64_t step)
      : data_(config.at("data").at(source)),
        media_token_(value_or(config.at("model"), "media_token", -1)),
        padded_(config.value("padded", false)),
        reverse_(config.value("reverse", false)),
        source_(static_cast<std::int64_t>(source)),
        side_(value_or(config.at("model"), "image_size", models::VisionSpec().image_size)),
        seed_(config.at("seed").get<std::uint64_t>() * 1'000'003 +
              static_cast<std::uint64_t>(step * 16 + source_)),
        device_(device_from(config)) {
    require<ConfigError>(!padded_ || !reverse_, "a padded batch cannot be reversed");
    std::int64_t tokens = 0, images = 0;
    for (const Json& sequence : data_.at("sequences")) {
      first_tokens_.push_back(tokens);
      first_images_.push_back(images);
      tokens += sequence.at(0).get<std::int64_t>();
      images += sequence.at(1).get<std::int64_t>();
      longest_ = std::max(longest_, sequence.at(0).get<std::int64_t>());
    }
    random_ids_ = at::randint(1, data_.at("text_tokens").get<std::int64_t>(), {tokens},
                              generator_from(seed_, at::kCPU), at::kLong);
    if (data_.contains("follows")) follow(data_.at("follows"));
  }

  PackedBatch batch() {
    const Json& sequences = data_.at("sequences");
    for (std::size_t i = 0; i < sequences.size(); ++i)
      add(reverse_ ? sequences.size() - 1 - i : i, sequences);
    const auto count = static_cast<std::int64_t>(slots_.size());
    PackedBatch batch;
    batch.ids = at::tensor(ids_, at::kLong);
    batch.positions = at::tensor(positions_, at::kLong);
    batch.labels = at::tensor(labels_, at::kLong);
    batch.sequence_offsets = at::tensor(offsets_, at::kLong);
    batch.image_offsets = at::tensor(image_offsets_, at::kLong);
    batch.image_slots = at::tensor(slots_, at::kLong);
    batch.source = at::full({count}, source_, at::kLong);
    batch.images = images();
    batch.sample_keys.assign(slots_.size(), "random");
    return batch;
  }

 private:
  // Something to learn: with this probability a token is the one that always follows the one
  // before it.
  void follow(double probability) {
    const std::int64_t words = data_.at("text_tokens").get<std::int64_t>() - 1;
    const at::Tensor chances =
        at::rand(random_ids_.sizes(), generator_from(seed_ + 1, at::kCPU), at::kDouble);
    auto* ids = random_ids_.mutable_data_ptr<std::int64_t>();
    const auto* chance = chances.const_data_ptr<double>();
    for (std::int64_t i = 1; i < random_ids_.numel(); ++i)
      if (chance[i] < probability) ids[i] = 1 + (ids[i - 1] * 7919 + 4241) % words;
  }

  // Images are spread evenly: one where a new share of the tokens begins.
  void add(std::size_t index, const Json& sequences) {
    const std::int64_t tokens = sequences.at(index).at(0), images = sequences.at(index).at(1);
    const auto* random = random_ids_.const_data_ptr<std::int64_t>() + first_tokens_[index];
    const std::int64_t length = padded_ ? longest_ : tokens;
    for (std::int64_t i = 0; i < length; ++i) {
      const bool real = i < tokens, image = real && images > 0 && i * images % tokens < images;
      const std::int64_t id = real ? random[i] : 0;
      ids_.push_back(image ? media_token_ : id);
      labels_.push_back(image || !real ? kNoLabel : id);
      positions_.push_back(i);
    }
    const std::int64_t slots = data_.at("slots");
    for (std::int64_t image = 0; image < images; ++image)
      image_order_.push_back(first_images_[index] + image);
    real_images_.push_back(images);
    offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
    image_offsets_.push_back(image_offsets_.back() + (padded_ ? slots : images));
    slots_.push_back(slots);
  }

  // On the device already, as a loader that is ahead would have them.
  at::Tensor images() const {
    std::int64_t real = 0;
    for (const std::int64_t count : real_images_) real += count;
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device_);
    at::Tensor random = at::randn({real, 3, side_, side_}, generator_from(seed_, device_), options);
    if (reverse_) return random.index_select(0, at::tensor(image_order_, at::kLong).to(device_));
    if (!padded_) return random;
    at::Tensor all = at::zeros({image_offsets_.back(), 3, side_, side_}, options);
    std::int64_t taken = 0;
    for (std::size_t s = 0; s < real_images_.size(); ++s) {
      all.narrow(0, image_offsets_[s], real_images_[s])
          .copy_(random.narrow(0, taken, real_images_[s]));
      taken += real_images_[s];
    }
    return all;
  }

  const Json& data_;
  std::int64_t media_token_;
  bool padded_, reverse_;
  std::int64_t source_, side_;
  std::uint64_t seed_;
  c10::Device device_;
  at::Tensor random_ids_;
  std::int64_t longest_ = 0;
  std::vector<std::int64_t> first_tokens_, first_images_, image_order_;  // first: by sequence
  std::vector<std::int64_t> ids_, positions_, labels_, slots_, real_images_;
  std::vector<std::int64_t> offsets_{0}, image_offsets_{0};
};

// 8 bits that frozen weights are stored in, or multiplied in, by name.
std::optional<c10::ScalarType> frozen_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "int8") return at::kChar;
  if (name == "fp8") return at::kFloat8_e4m3fn;
  throw ConfigError("frozen_dtype or frozen_compute '" + name + "' is not one of int8, fp8");
}

}  // namespace

c10::Device device_from(const Json& config) {
  const std::string name = config.at("device");
  require<ConfigError>(name == "cuda" || name == "cpu", "device '", name, "' is not cuda or cpu");
  return name == "cuda" ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

at::ScalarType compute_dtype(const Json& config) {
  const std::string name = config.at("precision");
  require<ConfigError>(name == "bf16" || name == "fp32", "precision '", name,
                       "' is not bf16 or fp32");
  return name == "bf16" ? at::kBFloat16 : at::kFloat;
}

models::FlamingoSpec flamingo_spec(const Json& model) {
  models::FlamingoSpec spec;
  spec.lm = models::decoder_spec({model.at("lm"), "CONFIG.json"});
  spec.cross_attention_every = model.at("cross_attention_every");
  spec.media_token = model.at("media_token");
  spec.endofchunk_token = model.at("endofchunk_token");
  spec.freeze_embeddings = model.value("freeze_embeddings", false);
  models::VisionSpec& vision = spec.vision;
  vision.image_size = value_or(model, "image_size", vision.image_size);
  vision.width = value_or(model, "vision_width", vision.width);
  vision.mlp_dim = 4 * vision.width;
  vision.layers = value_or(model, "vision_layers", vision.layers);
  vision.heads = value_or(model, "vision_heads", vision.heads);
  spec.perceiver.depth = value_or(model, "perceiver_depth", spec.perceiver.depth);
  return spec;
}

std::shared_ptr<models::LanguageModel> language_model(const Json& model) {
  if (!model.contains("lora")) {
    auto flamingo = std::make_shared<models::Flamingo>(flamingo_spec(model));
    nn::set_trainable(*flamingo, flamingo->trained_by_default());
    return flamingo;
  }
  auto lm =
      std::make_shared<models::CausalLm>(models::decoder_spec({model.at("lm"), "CONFIG.json"}));
  const Json& lora = model.at("lora");
  models::add_lora(*lm, {.targets = lora.at("targets").get<std::vector<std::string>>(),
                         .rank = lora.at("rank"),
                         .alpha = lora.at("alpha")});
  nn::set_trainable(*lm, {"*.lora_*"});
  return lm;
}

shard::ShardOptions flamingo_sharding(const Json& config) {
  shard::ShardOptions options;
  options.world = config.value("join", false)
                      ? comm::World::join()
                      : comm::World::fake(0, config.at("world"), device_from(config));
  if (compute_dtype(config) == at::kBFloat16)
    options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
  options.prefetch = config.at("prefetch");
  options.passes_per_update = config.value("passes", 1);
  options.activation_checkpointing = config.at("checkpointing").get<std::vector<std::string>>();
  options.checkpointed_share = config.value("share", 1.0);
  options.kept_activations.products = config.value("keep", false);
  options.kept_activations.in_host = config.value("offload", false);
  if (config.at("residency") == "resident") options.frozen.residency = shard::Residency::resident;
  options.frozen.dtype = frozen_dtype(config.value("frozen_dtype", std::string()));
  options.frozen.compute = frozen_dtype(config.value("frozen_compute", std::string()));
  return options;
}

shard::Policy units_of(const Json& model) {
  if (model.contains("lora")) return {.units = {"DecoderLayer"}};
  return {.units = {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler", "ViTBlock"}};
}

models::InputOptions flamingo_input_options(const Json& config) {
  models::InputOptions options;
  options.device = device_from(config);
  options.dtype = compute_dtype(config);
  options.loss.weight = config.at("loss_weights").get<std::vector<double>>();
  return options;
}

at::Generator generator_from(std::uint64_t seed, c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

PackedBatch flamingo_batch(const Json& config, std::int64_t step) {
  PackedBatch all;
  const std::size_t count = config.at("data").size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t source = config.value("reverse", false) ? count - 1 - i : i;
    const PackedBatch batch = RandomSequences(config, source, step).batch();
    all = i == 0 ? batch : models::concatenate(all, batch);
  }
  return all;
}

}  // namespace floe::bench
