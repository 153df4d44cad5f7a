#include "floe/models/vocabulary.h"

#include <ATen/ATen.h>

#include "floe/batch/packed_batch.h"

namespace floe::models {

TokenEmbedding::TokenEmbedding(std::int64_t vocab, std::int64_t dim, double deviation,
                               const std::vector<std::int64_t>& trained_rows)
    : trained_rows_(trained_rows) {
  weight_ = parameter("weight", {vocab, dim}, nn::Init::normal(deviation));
  if (!trained_rows.empty())
    rows_ = parameter("rows", {static_cast<std::int64_t>(trained_rows.size()), dim},
                      nn::Init::normal(deviation));
}

at::Tensor TokenEmbedding::forward(const at::Tensor& ids) {
  at::Tensor x = at::embedding(weight_, ids);
  for (std::size_t r = 0; r < trained_rows_.size(); ++r) {
    const at::Tensor own = rows_[static_cast<std::int64_t>(r)].unsqueeze(0).to(x.scalar_type());
    x = at::where(ids.eq(trained_rows_[r]).unsqueeze(1), own, x);
  }
  return x;
}

OutputHead::OutputHead(std::int64_t vocab, std::int64_t dim, double deviation, double scale)
    : scale_(scale) {
  weight_ = parameter("weight", {vocab, dim}, nn::Init::normal(deviation));
}

void OutputHead::tie(const TokenEmbedding& embedding) {
  weight_ = nn::Module::tie("weight", embedding.weight());
  trained_rows_ = embedding.trained_rows();
  if (!embedding.rows().defined()) return;
  register_parameter("rows", embedding.rows());
  rows_ = embedding.rows();
}

void OutputHead::tie_bias(const at::Tensor& bias) {
  register_parameter("bias", bias);
  bias_ = bias;
}

nn::OutputWeights OutputHead::output(const at::Tensor& like) {
  nn::OutputWeights output{.weight = weight_, .rows = rows_, .scale = scale_, .bias = bias_};
  if (!rows_.defined()) return output;
  if (!row_ids_.defined() || row_ids_.device() != like.device())
    row_ids_ = to_device(at::tensor(trained_rows_, at::kLong), like.device());
  output.row_ids = row_ids_;
  return output;
}

at::Tensor OutputHead::logits(const at::Tensor& hidden) {
  return nn::call_through(
      *this, [this](const at::Tensor& h) { return nn::logits(h, output(h)); }, hidden);
}

std::pair<at::Tensor, at::Tensor> OutputHead::loss(const at::Tensor& hidden,
                                                   const at::Tensor& targets,
                                                   const at::Tensor& weights, double z_loss) {
  return nn::call_through(
      *this,
      [this, targets, weights, z_loss](const at::Tensor& h) {
        return nn::cross_entropy(h, output(h), targets, weights, z_loss);
      },
      hidden);
}

}  // namespace floe::models
