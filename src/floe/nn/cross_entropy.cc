#include "floe/nn/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "floe/kernels/kernels.h"
#include "floe/nn/boundary.h"

namespace floe::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Elements of the logits that exist at once: 64 MiB in fp32. Our kernel needs no fp32 copies, and
// an accelerator wants larger products.
constexpr std::int64_t kChunkElements = std::int64_t{1} << 24;
constexpr std::int64_t kKernelChunkElements = std::int64_t{1} << 27;

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static variable_list forward(AutogradContext* context, const Variable& hidden,
                               const Variable& weight, const MaybeTensor& maybe_rows,
                               const MaybeTensor& maybe_ids, const MaybeTensor& maybe_bias,
                               const at::Tensor& targets, const at::Tensor& weights, double scale,
                               double z_loss, bool with_gradients) {
    const at::Tensor rows = tensor_of(maybe_rows), row_ids = tensor_of(maybe_ids);
    const at::Tensor bias = tensor_of(maybe_bias);
    const bool train_hidden = with_gradients && hidden.requires_grad();
    const bool train_weight = with_gradients && weight.requires_grad();
    const bool train_rows = with_gradients && rows.defined() && rows.requires_grad();
    const bool train_bias = with_gradients && bias.defined() && bias.requires_grad();
    const bool any_gradient = train_hidden || train_weight || train_rows || train_bias;
    const at::AutoGradMode grad_off(false);
    const std::int64_t count = hidden.size(0), vocabulary = weight.size(0);
    const auto fp32 = hidden.options().dtype(at::kFloat);
    const OutputWeights output{weight, rows, row_ids, scale, bias};

    at::Tensor token_losses = at::empty({count}, fp32), sum = at::zeros({}, fp32);
    at::Tensor hidden_grad, weight_grad, rows_grad, bias_grad;
    if (train_hidden) hidden_grad = at::empty_like(hidden);
    if (train_weight) weight_grad = at::zeros_like(weight);
    if (train_rows) rows_grad = at::zeros_like(rows);
    if (train_bias) bias_grad = at::zeros_like(bias);

    const bool with_kernel = kernels::usable({hidden, weight, rows, bias});
    const std::int64_t step = std::max<std::int64_t>(
        1, (with_kernel ? kKernelChunkElements : kChunkElements) / vocabulary);
    for (std::int64_t first = 0; first < count; first += step) {
      const std::int64_t n = std::min(step, count - first);
      const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, first, n); };
      const at::Tensor x = part(hidden);
      at::Tensor slope;  // the loss's gradient for the logits
      if (with_kernel) {
        slope = bias.defined() ? at::addmm(bias, x, weight.t()) : x.mm(weight.t());
        if (rows.defined()) slope.index_copy_(1, row_ids, x.mm(rows.t()));
        at::Tensor weighted = at::empty({n}, fp32);
        kernels::cross_entropy_(slope, part(targets), part(weights), scale, z_loss, any_gradient,
                                {part(token_losses), weighted});
        sum += weighted.sum();
      } else {
        const at::Tensor target = part(targets).unsqueeze(1);
        at::Tensor scores = floe::nn::logits(x, output).to(at::kFloat);
        const at::Tensor log_z = scores.logsumexp(1, /*keepdim=*/true);
        const at::Tensor loss = log_z - scores.gather(1, target);
        part(token_losses).copy_(loss.squeeze(1));
        const at::Tensor share = part(weights).unsqueeze(1);
        sum += (share * (z_loss == 0 ? loss : loss + z_loss * log_z.square())).sum();
        if (any_gradient) {
          scores.sub_(log_z).exp_();  // the probabilities
          if (z_loss != 0) scores.mul_(1 + 2 * z_loss * log_z);
          scores.scatter_add_(1, target, at::full({n, 1}, -1.0, fp32)).mul_(share * scale);
          slope = scores.to(hidden.scalar_type());
        }
      }
      if (!any_gradient) continue;
      at::Tensor row_slope;
      if (rows.defined()) {
        row_slope = slope.index_select(1, row_ids);
        slope.index_fill_(1, row_ids, 0);
      }
      if (train_hidden) {
        at::Tensor grad = part(hidden_grad);
        at::mm_out(grad, slope, weight);
        if (rows.defined()) grad.addmm_(row_slope, rows);
      }
      if (train_weight) weight_grad.addmm_(slope.t(), x);
      if (train_rows) rows_grad.addmm_(row_slope.t(), x);
      if (train_bias) bias_grad += slope.sum(0);
    }
    context->save_for_backward({hidden_grad, weight_grad, rows_grad, bias_grad});
    context->mark_non_differentiable({token_losses});
    return {sum, token_losses};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list kept = context->get_saved_variables();
    for (Variable& grad : kept)
      if (grad.defined()) grad = grad * grads[0].to(grad.scalar_type());
    return {kept[0], kept[1], kept[2], {}, kept[3], {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor logits(const at::Tensor& hidden, const OutputWeights& output) {
  at::Tensor scores = at::linear(hidden, output.weight, some(output.bias));
  if (output.rows.defined())
    scores = scores.index_copy(1, output.row_ids, at::linear(hidden, output.rows));
  return output.scale == 1 ? scores : scores * output.scale;
}

std::pair<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& hidden,
                                                const OutputWeights& output,
                                                const at::Tensor& targets,
                                                const at::Tensor& weights, double z_loss) {
  // Inside of the function gradients are always off.
  const auto result = CrossEntropy::apply(hidden, output.weight, some(output.rows),
                                          some(output.row_ids), some(output.bias), targets, weights,
                                          output.scale, z_loss, at::GradMode::is_enabled());
  return {result[0], result[1]};
}

}  // namespace floe::nn
