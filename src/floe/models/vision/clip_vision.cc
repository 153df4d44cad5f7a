#include "floe/models/vision/clip_vision.h"

#include <ATen/ATen.h>

#include <cmath>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"
#include "floe/nn/attention.h"
#include "floe/nn/products/linear.h"

namespace floe::models {
namespace {

// A fused projection as torch.nn.MultiheadAttention registers it.
class FusedProjection : public nn::Module {
 public:
  explicit FusedProjection(std::int64_t width) {
    weight = parameter("in_proj_weight", {3 * width, width}, nn::Init::normal(0.02));
    bias = parameter("in_proj_bias", {3 * width}, nn::Init::zeros());
    out = child<nn::Linear>("out_proj", width, width);
  }
  bool multiplies(const std::string& parameter) const override {
    return parameter == "in_proj_weight";
  }
  at::Tensor weight, bias;
  nn::Ptr<nn::Linear> out;
};

}  // namespace

PatchEmbedding::PatchEmbedding(std::int64_t width, std::int64_t patch) : patch_(patch) {
  weight_ = parameter("weight", {width, 3, patch, patch}, nn::Init::normal(0.02));
}

at::Tensor PatchEmbedding::forward(const at::Tensor& images) {
  const std::int64_t count = images.size(0), high = images.size(2) / patch_,
                     wide = images.size(3) / patch_, values = 3 * patch_ * patch_;
  if (kernels::acts_as_cpu(images)) {
    const at::Tensor patches = at::conv2d(images.to(weight_.scalar_type()), weight_, {}, patch_);
    return at::constant_pad_nd(patches.flatten(2).transpose(1, 2), {0, 0, 1, 0});
  }
  // Rows of whole 16 bytes, which fast products ask for: 588 values of a patch of 14 are not.
  const std::int64_t columns = round_up(values, 8);
  const at::Tensor rows = at::zeros({count, 1 + high * wide, columns}, weight_.options());
  rows.narrow(1, 1, high * wide)
      .narrow(2, 0, values)
      .view({count, high, wide, 3, patch_, patch_})
      .copy_(images.narrow(2, 0, high * patch_)
                 .narrow(3, 0, wide * patch_)
                 .unflatten(2, {high, patch_})
                 .unflatten(4, {wide, patch_})
                 .permute({0, 2, 4, 1, 3, 5}));
  return at::linear(rows, at::constant_pad_nd(weight_.flatten(1), {0, columns - values}));
}

ViTBlock::ViTBlock(const VisionSpec& spec) : spec_(spec) {
  ln_1_ = child<nn::LayerNorm>("ln_1", spec.width, spec.norm_eps);
  const auto attention = child<FusedProjection>("attn", spec.width);
  in_proj_weight_ = attention->weight;
  in_proj_bias_ = attention->bias;
  out_proj_ = attention->out;
  ln_2_ = child<nn::LayerNorm>("ln_2", spec.width, spec.norm_eps);
  c_fc_ = child_at<nn::Linear>("mlp.c_fc", spec.width, spec.mlp_dim);
  c_proj_ = child_at<nn::Linear>("mlp.c_proj", spec.mlp_dim, spec.width);
}

at::Tensor ViTBlock::attend(const at::Tensor& x) {
  const std::int64_t images = x.size(0), tokens = x.size(1), dim = spec_.width / spec_.heads;
  const at::Tensor qkv = nn::linear(x, in_proj_weight_, in_proj_bias_)
                             .view({images, tokens, 3, spec_.heads, dim})
                             .permute({2, 0, 3, 1, 4});
  const at::Tensor mixed = nn::torch_attention(qkv[0], qkv[1], qkv[2], {}, {});
  return out_proj_(mixed.transpose(1, 2).reshape({images, tokens, spec_.width}));
}

bool ViTBlock::takes_kernels(const at::Tensor& x) const {
  const nn::Linear& last = *c_proj_;
  const at::Tensor values = nn::codes_of(last.weight) ? at::Tensor() : last.weight;
  return !at::GradMode::is_enabled() && ln_1_->is_bare() && ln_2_->is_bare() && !last.boundary &&
         !last.checkpointed && !last.lora() && kernels::norm_fits(x) &&
         kernels::usable({x, ln_1_->weight, ln_2_->weight, values, last.bias});
}

at::Tensor ViTBlock::forward(const at::Tensor& x) {
  if (takes_kernels(x)) {
    const auto first = ln_1_->weights(), second = ln_2_->weights();
    const auto codes = [](const at::Tensor& weight) { return nn::codes_of(weight) != nullptr; };
    const auto normed = kernels::layer_norm(x, {}, first.weight, first.bias, {},
                                            {.eps = first.eps, .codes = codes(in_proj_weight_)});
    const nn::SharedRows of_first(normed.out, normed.codes, normed.code_scales);
    // The sum already has the last layer's bias, so that its product is added in place.
    const auto both =
        kernels::layer_norm(x, attend(normed.out), second.weight, second.bias, c_proj_->bias,
                            {.eps = second.eps, .codes = codes(c_fc_->weight)});
    const nn::SharedRows of_second(both.out, both.codes, both.code_scales);
    const at::Tensor sum = both.sum.view({-1, spec_.width});
    const at::Tensor inner = c_fc_(both.out).view({-1, spec_.mlp_dim});
    if (spec_.activation == Activation::quick_gelu)
      nn::add_quick_gelu_linear_(sum, inner, c_proj_->weight);
    else
      nn::add_linear_(sum, activate(inner, spec_.activation), c_proj_->weight);
    return both.sum;
  }
  const at::Tensor y = x + attend(ln_1_(x));
  return y + c_proj_(activate(c_fc_(ln_2_(y)), spec_.activation));
}

VisionTransformer::VisionTransformer(const VisionSpec& spec, bool tokens_after_norm)
    : spec_(spec), tokens_after_norm_(tokens_after_norm) {
  const auto init = nn::Init::normal(1 / std::sqrt(static_cast<double>(spec.width)));
  class_embedding_ = parameter("class_embedding", {spec.width}, init);
  positional_embedding_ =
      parameter("positional_embedding", {spec.grid() * spec.grid() + 1, spec.width}, init);
  if (spec.embed_dim > 0) proj_ = parameter("proj", {spec.width, spec.embed_dim}, init);
  conv1_ = child<PatchEmbedding>("conv1", spec.width, spec.patch);
  ln_pre_ = child<nn::LayerNorm>("ln_pre", spec.width, spec.norm_eps);
  blocks_ = child_at<nn::List<ViTBlock>>("transformer.resblocks");
  for (std::int64_t i = 0; i < spec.layers; ++i) blocks_->add(spec);
  ln_post_ = child<nn::LayerNorm>("ln_post", spec.width, spec.norm_eps);
}

at::Tensor VisionTransformer::hidden(const at::Tensor& images) {
  require<DataError>(images.dim() == 4 && images.size(1) == 3 &&
                         images.size(2) == spec_.image_size && images.size(3) == spec_.image_size,
                     "the image tower takes images of the shape [M, 3, ", spec_.image_size, ", ",
                     spec_.image_size, "], not [", join(images.sizes()), "]");
  at::Tensor places = positional_embedding_.clone();
  places[0] += class_embedding_;
  at::Tensor x = ln_pre_(conv1_(images).add_(places));
  for (const auto& block : *blocks_) x = block(x);
  return x;
}

at::Tensor VisionTransformer::patches_of(const at::Tensor& tokens) const {
  // Without a gap for the class token: the resampler's layers read them again and again.
  return tokens.narrow(1, 1, tokens.size(1) - 1).contiguous();
}

VisionOutput VisionTransformer::encode(const at::Tensor& images) {
  const at::AutoGradMode grad_off(false);
  const at::Tensor x = hidden(images), normed = ln_post_(x);
  VisionOutput output;
  output.tokens = patches_of(tokens_after_norm_ ? normed : x);
  if (proj_.defined()) output.pooled = normed.select(1, 0).matmul(proj_);
  return output;
}

at::Tensor VisionTransformer::forward(const at::Tensor& images) {
  const at::AutoGradMode grad_off(false);
  const at::Tensor x = hidden(images);
  return patches_of(tokens_after_norm_ ? ln_post_(x) : x);
}

}  // namespace floe::models
