// CLIP's image tower (ViT), under open_clip's names. It never trains.
#pragma once

#include <array>

#include "floe/image/transform.h"
#include "floe/models/hf_config.h"
#include "floe/nn/layers.h"

namespace floe::models {

struct VisionSpec {
  std::int64_t image_size = 224, patch = 14, width = 1024, layers = 24, heads = 16, mlp_dim = 4096;
  std::int64_t embed_dim = 0;  // width of the pooled output's projection; 0: there is none
  Activation activation = Activation::quick_gelu;
  double norm_eps = 1e-5;
  // How the pictures that it learned from were normalised.
  std::array<float, 3> image_mean = image::TransformOptions().mean;
  std::array<float, 3> image_std = image::TransformOptions().std;

  std::int64_t grid() const { return image_size / patch; }
};

class ViTBlock : public nn::Module {
 public:
  explicit ViTBlock(const VisionSpec& spec);
  at::Tensor forward(const at::Tensor& x);  // [M, tokens, width]

 private:
  at::Tensor attend(const at::Tensor& x);
  // Whether the forward without gradients may go through floe's kernels.
  bool takes_kernels(const at::Tensor& x) const;

  VisionSpec spec_;
  nn::Ptr<nn::LayerNorm> ln_1_, ln_2_;
  at::Tensor in_proj_weight_, in_proj_bias_;
  nn::Ptr<nn::Linear> out_proj_, c_fc_, c_proj_;
};

// A convolution without bias, one step per patch. On a GPU it is a product of patches as rows,
// which takes a tenth of the time that cuDNN's convolution does; on the CPU it stays one, whose
// rounding does not depend on how many images there are.
class PatchEmbedding : public nn::Module {
 public:
  PatchEmbedding(std::int64_t width, std::int64_t patch);
  // [M, 3, H, W] → [M, 1 + grid², width], zeros first, where an image's class token goes.
  at::Tensor forward(const at::Tensor& images);
  bool weights_in_backward() const override { return false; }

 private:
  std::int64_t patch_;
  at::Tensor weight_;
};

struct VisionOutput {
  at::Tensor tokens;  // [M, grid², width], without the class token
  at::Tensor pooled;  // [M, embed_dim], undefined without projection

  template <class F>
  void visit_tensors(F&& f) {
    f(tokens);
    f(pooled);
  }
};

class VisionTransformer : public nn::Module {
 public:
  // tokens_after_norm: the final norm is applied to the tokens that are handed on, as newer
  // versions of open_clip do (2.23 and later); older ones hand them on before it.
  VisionTransformer(const VisionSpec& spec, bool tokens_after_norm);
  const VisionSpec& spec() const { return spec_; }
  // images [M, 3, image_size, image_size] → [M, grid², width]. Without gradient.
  at::Tensor forward(const at::Tensor& images);
  // The same with the pooled class token.
  VisionOutput encode(const at::Tensor& images);

 private:
  at::Tensor hidden(const at::Tensor& images);  // [M, 1 + grid², width] after the last block
  at::Tensor patches_of(const at::Tensor& tokens) const;

  VisionSpec spec_;
  bool tokens_after_norm_;
  at::Tensor class_embedding_, positional_embedding_, proj_;
  nn::Ptr<PatchEmbedding> conv1_;
  nn::Ptr<nn::LayerNorm> ln_pre_, ln_post_;
  nn::Ptr<nn::List<ViTBlock>> blocks_;
};

}  // namespace floe::models
