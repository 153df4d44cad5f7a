// Flamingo as OpenFlamingo computes it: image tower, resampler, and a decoder with gated
// cross-attention in front of every n-th layer. Names are those of OpenFlamingo's state dict.
#pragma once

#include "floe/models/decoders/decoder.h"
#include "floe/models/flamingo/perceiver.h"
#include "floe/models/vision/clip_vision.h"

namespace floe::models {

struct FlamingoSpec {
  DecoderSpec lm;
  VisionSpec vision;
  PerceiverSpec perceiver;
  CrossAttentionSpec cross_attention;
  std::int64_t cross_attention_every = 1;
  std::int64_t media_token = -1, endofchunk_token = -1;
  bool vision_tokens_after_norm = false;
  bool only_immediate_media = true;
  bool freeze_embeddings = false;
};

class Flamingo : public nn::Module, public DecoderModel {
 public:
  explicit Flamingo(const FlamingoSpec& spec);
  const FlamingoSpec& spec() const { return spec_; }

  nn::Module& module() override { return *this; }
  const Decoder* decoder() const override { return &*lang_encoder_; }
  std::int64_t media_token() const override { return spec_.media_token; }
  bool only_immediate_media() const override { return spec_.only_immediate_media; }
  std::int64_t image_size() const override { return spec_.vision.image_size; }
  image::TransformOptions picture_options() const override {
    return {.size = static_cast<int>(spec_.vision.image_size),
            .mean = spec_.vision.image_mean,
            .std = spec_.vision.image_std};
  }
  at::Tensor hidden(const ModelInput& input, const at::Tensor& media, Stages* stages) override;
  at::Tensor encode_images(const at::Tensor& images, Stages* stages) override;

 private:
  FlamingoSpec spec_;
  nn::Ptr<VisionTransformer> vision_encoder_;
  nn::Ptr<PerceiverResampler> perceiver_;
  nn::Ptr<Decoder> lang_encoder_;
};

}  // namespace floe::models
