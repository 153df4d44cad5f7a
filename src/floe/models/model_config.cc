#include "floe/models/model_config.h"

#include <filesystem>

#include "floe/config/input_paths.h"
#include "floe/schema/schema.h"

namespace floe::models {

void describe(config::Schema<PerceiverSpec>& s) {
  using C = PerceiverSpec;
  s.field("depth", &C::depth, "Layers of the resampler").at_least(1);
  s.field("dim_head", &C::dim_head, "Width of a head").at_least(1);
  s.field("heads", &C::heads, "Number of heads").at_least(1);
  s.field("num_latents", &C::num_latents, "Tokens that an image becomes").at_least(1);
  s.field("ff_mult", &C::ff_mult, "Width of the feed-forward part as a multiple").at_least(1);
}

void describe(config::Schema<CrossAttentionSpec>& s) {
  using C = CrossAttentionSpec;
  s.field("dim_head", &C::dim_head, "Width of a head").at_least(1);
  s.field("heads", &C::heads, "Number of heads").at_least(1);
  s.field("ff_mult", &C::ff_mult, "Width of the feed-forward part as a multiple").at_least(1);
}

void describe(config::Schema<LoraConfig>& s) {
  using C = LoraConfig;
  s.field("targets", &C::targets, "Patterns over the names of linear layers")
      .required()
      .not_empty();
  s.field("rank", &C::rank, "Rank of the adapters").at_least(1);
  s.field("alpha", &C::alpha, "Scale: alpha / rank is multiplied with the adapter's output");
  s.field("dropout", &C::dropout, "Share of the adapter's input that is dropped")
      .at_least(0)
      .less_than(1);
  s.field("rslora", &C::rslora, "Divide alpha by the square root of the rank instead");
  s.field("weights", &C::weights, "PEFT folder with adapters to start from; empty: new ones");
}

void describe(config::Schema<ModelConfig>& s) {
  using C = ModelConfig;
  s.field("type", &C::type,
          "flamingo, causal_lm: a language model that continues text, or auto: what the "
          "config.json of lm names");
  s.field("lm", &C::lm, "Hugging Face folder of the language model").required();
  s.field("vision", &C::vision,
          "CLIP image tower: folder or file of open_clip, Hugging Face or OpenAI");
  s.field("weights", &C::weights,
          "Weights that win over those of lm and vision: a run folder (its newest checkpoint), a "
          "checkpoint, "
          "an exported folder, .safetensors or .pt");
  s.field("tokenizer", &C::tokenizer, "Folder of the tokenizer; empty: that of lm, if it has one");
  s.field("cross_attn_every_n_layers", &C::cross_attn_every_n_layers,
          "Gated cross-attention stands in front of every n-th layer")
      .at_least(1);
  s.section("perceiver", &C::perceiver, "Sizes of the resampler");
  s.section("cross_attn", &C::cross_attn, "Sizes of gated cross-attention");
  s.field(
      "vision_tokens_after_ln_post", &C::vision_tokens_after_ln_post,
      "Whether image tokens pass the tower's last norm: true as in open_clip 2.23 and later, false "
      "as in OpenFlamingo's releases");
  s.field("only_attend_immediate_media", &C::only_attend_immediate_media,
          "Whether text looks only at the image just before it");
  s.field("freeze_lm_embeddings", &C::freeze_lm_embeddings,
          "Whether the embeddings of <image> and <|endofchunk|> stay as they are");
  s.field("media_token_id", &C::media_token_id, "Id of <image>; null: from the tokenizer")
      .at_least(0);
  s.field("endofchunk_token_id", &C::endofchunk_token_id,
          "Id of <|endofchunk|>; null: from the tokenizer")
      .at_least(0);
  s.field("dropout", &C::dropout, "0, or config: as the language model's config.json says");
  s.field("lora", &C::lora, "Low-rank adapters; null: none");
  s.field("skip_init", &C::skip_init,
          "Leave weights unread where a checkpoint will bring them anyway");
  s.field("random_init", &C::random_init,
          "Start a language model or image tower without files from random weights");
  s.check("vision", [](const C& c) {
    if (c.type == C::Type::flamingo && c.vision.empty())
      return "is missing: a Flamingo needs an image tower; name its folder or file";
    if (c.type == C::Type::causal_lm && !c.vision.empty())
      return "has no effect with type: causal_lm; remove it, or set type: flamingo";
    if (c.type == C::Type::from_config && !c.vision.empty())
      return "has no effect with type: auto; remove it, or set type: flamingo";
    return "";
  });
}

void resolve_paths(ModelConfig& config, const std::string& folder) {
  const auto resolve = [&](std::string& path) {
    if (path.empty() || path.starts_with("/")) return;
    const std::string file = (std::filesystem::path(folder) / "model.yaml").string();
    const std::string found = config::find_input(path, file);
    path = found != path ? found : config::input_folders(file).front() + "/" + path;
  };
  resolve(config.lm);
  resolve(config.vision);
  resolve(config.weights);
  resolve(config.tokenizer);
  if (config.lora) resolve(config.lora->weights);
}

}  // namespace floe::models
