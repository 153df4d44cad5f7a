#include "floe/models/flamingo/flamingo.h"

#include "floe/core/error.h"

namespace floe::models {
namespace {

// OpenFlamingo trains what it adds, and the embeddings of its two tokens.
ModelInfo flamingo_info(const FlamingoSpec& spec) {
  ModelInfo info = decoder_info(spec.lm);
  info.kind = "flamingo";
  info.trained_by_default = {"perceiver.*", "*gated_cross_attn_layer.*"};
  if (spec.freeze_embeddings) return info;
  info.trained_by_default.push_back("lang_encoder." + spec.lm.names.embed + ".rows");
  info.trained_rows = {spec.media_token, spec.endofchunk_token};
  return info;
}

}  // namespace

Flamingo::Flamingo(const FlamingoSpec& spec) : DecoderModel(flamingo_info(spec)), spec_(spec) {
  require<ConfigError>(
      spec.cross_attention_every >= 1 && spec.cross_attention_every <= spec.lm.layers,
      "model.cross_attn_every_n_layers is ", spec.cross_attention_every,
      ", but the language model has ", spec.lm.layers, " layers");
  vision_encoder_ =
      child<VisionTransformer>("vision_encoder", spec.vision, spec.vision_tokens_after_norm);
  perceiver_ = child<PerceiverResampler>("perceiver", spec.vision.width, spec.perceiver);
  const Gates gates{spec.cross_attention_every, spec.vision.width, spec.cross_attention};
  lang_encoder_ = child<Decoder>("lang_encoder", spec.lm, gates, info().trained_rows);
}

at::Tensor Flamingo::encode_images(const at::Tensor& images, Stages* stages) {
  at::Tensor tokens;
  if (stages) {
    const VisionOutput seen =
        nn::call_through(*vision_encoder_, [&] { return vision_encoder_->encode(images); });
    (*stages)["vision_tokens"] = tokens = seen.tokens;
    if (seen.pooled.defined()) (*stages)["vision_pooled"] = seen.pooled;
  } else {
    tokens = vision_encoder_(images);
  }
  const at::Tensor latents = perceiver_(tokens);
  if (stages) (*stages)["perceiver_out"] = latents;
  return latents;
}

at::Tensor Flamingo::hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) {
  Decoder::Watch watch;
  if (stages)
    watch = [stages](std::int64_t i, const at::Tensor& gated, const at::Tensor& out) {
      if (gated.defined()) (*stages)[str("layer", i, ".gated_cross_attn_out")] = gated;
      (*stages)[str("layer", i, ".decoder_out")] = out;
    };
  const at::Tensor seen = media.defined() ? media : encode_images(input.images, stages);
  return lang_encoder_->hidden(input.ids, seen, input.context, watch);
}

}  // namespace floe::models
