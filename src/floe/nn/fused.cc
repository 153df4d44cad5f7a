#include "floe/nn/fused.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"
#include "floe/nn/boundary.h"
#include "floe/nn/products/gradient_place.h"
#include "floe/nn/products/linear.h"
#include "floe/nn/products/rows.h"

namespace floe::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor contiguous(const at::Tensor& grad) { return grad.defined() ? grad.contiguous() : grad; }

bool any_trains(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) return true;
  return false;
}

// What torch makes of an RMS norm on the CPU, where it has no kernel for it.
at::Tensor composed_rms_norm(const at::Tensor& x, const NormWeights& norm) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(at::pow(wide, 2).mean({-1}, /*keepdim=*/true).add_(norm.eps));
  return wide.mul(rstd).mul(norm.weight).to(x.scalar_type());
}

at::Tensor plain_norm(const at::Tensor& x, const NormWeights& norm) {
  const std::int64_t dim = norm.weight.size(0);
  if (!norm.centred && x.is_meta() && kernels::acts_as_cpu(x)) return composed_rms_norm(x, norm);
  return norm.centred ? at::layer_norm(x, {dim}, norm.weight, norm.bias, norm.eps)
                      : at::rms_norm(x, {dim}, norm.weight, norm.eps);
}

bool norm_is_usable(const at::Tensor& x, const NormWeights& norm) {
  return kernels::usable({x, norm.weight, norm.bias}) && kernels::norm_fits(x);
}

struct AddNorm : torch::autograd::Function<AddNorm> {
  static variable_list forward(AutogradContext* context, const Variable& x,
                               const MaybeTensor& maybe_added, const Variable& weight,
                               const MaybeTensor& maybe_bias, double eps, bool centred) {
    const at::Tensor added = tensor_of(maybe_added), bias = tensor_of(maybe_bias);
    const auto normed =
        kernels::layer_norm(x, added, weight, bias, {}, {eps, /*statistics=*/true, centred});
    const at::Tensor y = added.defined() ? normed.sum : x;
    context->save_for_backward({y, normed.mean, normed.rstd, weight, bias});
    context->saved_data["has_added"] = added.defined();
    context->saved_data["trains"] = any_trains({weight, bias});
    context->set_materialize_grads(false);
    return {y, normed.out};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], &mean = saved[1], &rstd = saved[2], &weight = saved[3],
                     &bias = saved[4];
    const at::Tensor along = contiguous(grads[0]), branch = contiguous(grads[1]);
    kernels::NormGrads norm{along, {}, {}};
    if (branch.defined())
      norm = kernels::layer_norm_backward(branch, y, mean, rstd, weight, along, /*want_input=*/true,
                                          context->saved_data["trains"].toBool());
    const bool has_added = context->saved_data["has_added"].toBool();
    if (!bias.defined()) norm.bias.reset();
    return {norm.input, has_added ? norm.input : at::Tensor(), norm.weight, norm.bias, {}, {}};
  }
};

struct AddCodedNorm : torch::autograd::Function<AddCodedNorm> {
  static variable_list forward(AutogradContext* context, const Variable& x,
                               const MaybeTensor& maybe_added, const Variable& weight,
                               const MaybeTensor& maybe_bias, double eps, bool centred, bool back,
                               kernels::Normed* made) {
    const at::Tensor added = tensor_of(maybe_added), bias = tensor_of(maybe_bias);
    *made = kernels::layer_norm(
        x, added, weight, bias, {},
        {.eps = eps, .statistics = back, .centred = centred, .codes = true, .kept = back});
    if (back) context->save_for_backward({made->kept, made->mean, made->rstd, weight});
    context->saved_data["has_added"] = added.defined();
    context->set_materialize_grads(false);
    return {added.defined() ? made->sum : x, made->out};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor along = contiguous(grads[0]), branch = contiguous(grads[1]);
    at::Tensor input = along;
    if (branch.defined())
      input = kernels::layer_norm_backward(branch, saved[0], saved[1], saved[2], saved[3], along,
                                           /*want_input=*/true, /*want_weights=*/false)
                  .input;
    const bool has_added = context->saved_data["has_added"].toBool();
    return {input, has_added ? input : at::Tensor(), {}, {}, {}, {}, {}, {}};
  }
};

struct NormLinear : torch::autograd::Function<NormLinear> {
  static variable_list forward(AutogradContext* context, const Variable& x,
                               const Variable& norm_weight, const MaybeTensor& maybe_bias,
                               const Variable& weight, double eps, bool centred) {
    const at::Tensor bias = tensor_of(maybe_bias);
    const auto normed =
        kernels::layer_norm(x, {}, norm_weight, bias, {}, {eps, /*statistics=*/true, centred});
    context->save_for_backward({x, normed.mean, normed.rstd, norm_weight, bias, weight});
    context->saved_data["eps"] = eps;
    context->saved_data["trains_x"] = x.requires_grad();
    context->saved_data["trains_norm"] = any_trains({norm_weight, bias});
    context->saved_data["trains_weight"] = weight.requires_grad();
    keep_gradient_place(*context, weight);
    context->set_materialize_grads(false);
    return {x, at::linear(normed.out, weight)};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &mean = saved[1], &rstd = saved[2], &norm_weight = saved[3],
                     &bias = saved[4], &weight = saved[5];
    const at::Tensor along = contiguous(grads[0]);
    if (!grads[1].defined()) return {along, {}, {}, {}, {}, {}};
    const auto is = [&](const char* key) { return context->saved_data[key].toBool(); };
    const at::Tensor grad = rows_of(grads[1]);
    if (!is("trains_x") && is("trains_norm") && is("trains_weight") && bias.defined())
      return without_input(grad, x, context->saved_data["eps"].toDouble(), norm_weight, bias,
                           weight, along);
    kernels::NormGrads norm{along, {}, {}};
    at::Tensor weight_grad;
    if (is("trains_weight")) {
      const auto again = kernels::layer_norm(
          x, {}, norm_weight, bias, {},
          {.eps = context->saved_data["eps"].toDouble(), .centred = mean.defined()});
      weight_grad = weight_gradient(*context, grad, rows_of(again.out));
    }
    if (is("trains_x") || is("trains_norm"))
      norm = kernels::layer_norm_backward(grad.mm(weight), x, mean, rstd, norm_weight, along,
                                          is("trains_x"), is("trains_norm"));
    if (!bias.defined()) norm.bias.reset();
    return {norm.input, norm.weight, norm.bias, weight_grad, {}, {}};
  }

 private:
  // Of y = (x̂ ∘ w + b) Wᵀ, where x itself needs no gradient (images that the resampler looks at):
  // with G = dyᵀ x̂ and s the sum of dy's rows, dW = G ∘ w + s bᵀ, dw = Σ rows of W ∘ G, db = s W.
  // So the gradient of x̂ need not be there: a product of all rows and two passes over them.
  static variable_list without_input(const at::Tensor& grad, const at::Tensor& x, double eps,
                                     const at::Tensor& norm_weight, const at::Tensor& bias,
                                     const at::Tensor& weight, const at::Tensor& along) {
    const auto bare = kernels::layer_norm(x, {}, at::ones_like(norm_weight), at::zeros_like(bias),
                                          {}, {.eps = eps});
    const at::Tensor with_rows = grad.t().mm(rows_of(bare.out)).to(at::kFloat);  // G
    const at::Tensor sums = grad.sum({0}, /*keepdim=*/false, at::kFloat);        // s
    const at::Tensor wide = weight.to(at::kFloat);
    const auto narrow = [](const at::Tensor& g, const at::Tensor& like) {
      return g.to(like.scalar_type());
    };
    return {along,
            narrow((wide * with_rows).sum(0), norm_weight),
            narrow(sums.matmul(wide), bias),
            narrow(with_rows * norm_weight + sums.unsqueeze(1) * bias, weight),
            {},
            {}};
  }
};

struct Gelu : torch::autograd::Function<Gelu> {
  static Variable forward(AutogradContext* context, const Variable& x) {
    context->save_for_backward({x});
    return kernels::gated_gelu(x, {});
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {kernels::gelu_backward(contiguous(grads[0]), context->get_saved_variables()[0])};
  }
};

struct GatedSilu : torch::autograd::Function<GatedSilu> {
  static Variable forward(AutogradContext* context, const Variable& gate, const Variable& up) {
    context->save_for_backward({gate, up});
    return kernels::gated_silu(gate, up);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [gate, up] = gated_silu_backward(grads[0], saved[0], saved[1]);
    return {gate, up};
  }
};

// The gradient of a gate from that of its tanh.
at::Tensor gate_grad(const at::Tensor& factor_grad, const at::Tensor& gate) {
  const at::Tensor t = gate.to(at::kFloat).tanh();
  return (factor_grad * (1 - t * t)).to(gate.scalar_type());
}

struct AddGated : torch::autograd::Function<AddGated> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& inner,
                          const Variable& weight, const MaybeTensor& maybe_gate, bool gelu) {
    const at::Tensor gate = tensor_of(maybe_gate);
    const at::Tensor sent = gelu             ? kernels::gated_gelu(inner, gate)
                            : gate.defined() ? inner * gate.tanh()
                                             : inner;
    context->save_for_backward({inner, weight, gate});
    context->saved_data["gelu"] = gelu;
    context->saved_data["trains_weight"] = weight.requires_grad();
    keep_gradient_place(*context, weight);
    return at::addmm(rows_of(x), rows_of(sent), weight.t()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &inner = saved[0], &weight = saved[1], &gate = saved[2];
    const at::Tensor grad = rows_of(grads[0]);
    // Of the branch without its gate. ⟨grad, linear(inner)⟩ = ⟨grad · weight, inner⟩, so the
    // branch's output need not be there for the gate's own gradient.
    at::Tensor inner_grad = grad.mm(weight).view(inner.sizes());
    at::Tensor sent, factor_grad, weight_grad, gates_grad;
    if (context->saved_data["gelu"].toBool()) {
      const auto back = kernels::gated_gelu_backward_(inner_grad, inner, gate);
      sent = back.out;
      factor_grad = back.factor;
    } else if (gate.defined()) {
      const at::Tensor t = gate.tanh();
      factor_grad = (inner_grad * inner).sum(at::kFloat).view({1});
      inner_grad.mul_(t);
      sent = inner * t;
    } else {
      sent = inner;
    }
    if (context->saved_data["trains_weight"].toBool())
      weight_grad = weight_gradient(*context, grad, rows_of(sent));
    if (gate.defined()) gates_grad = gate_grad(factor_grad, gate);
    return {grads[0], inner_grad, weight_grad, gates_grad, {}};
  }
};

at::Tensor add_gated(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& weight,
                     const at::Tensor& gate, bool gelu) {
  if (kernels::usable({x, inner, weight, gate}))
    return AddGated::apply(x, inner, weight, some(gate), gelu);
  const at::Tensor branch = nn::linear(gelu ? nn::gelu(inner) : inner, weight);
  return (gate.defined() ? branch * gate.tanh() : branch) + x;
}

}  // namespace

at::Tensor quick_gelu(const at::Tensor& x) {
  const bool differentiable = at::GradMode::is_enabled() && x.requires_grad();
  return !differentiable && kernels::usable({x}) ? kernels::quick_gelu(x)
                                                 : x * at::sigmoid(1.702 * x);
}

at::Tensor gelu(const at::Tensor& x) { return kernels::usable({x}) ? Gelu::apply(x) : at::gelu(x); }

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  return kernels::usable({gate, up}) ? GatedSilu::apply(gate, up) : at::silu(gate) * up;
}

std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate,
                                                      const at::Tensor& up) {
  const at::Tensor slope = contiguous(grad);
  if (kernels::usable({slope, gate, up})) return kernels::gated_silu_backward(slope, gate, up);
  return {at::silu_backward(slope * up, gate), slope * at::silu(gate)};
}

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& added,
                                           const NormWeights& norm) {
  if (norm_is_usable(x, norm) && (!added.defined() || kernels::usable({x, added}))) {
    const auto both =
        AddNorm::apply(x, some(added), norm.weight, some(norm.bias), norm.eps, norm.centred);
    return {both[0], both[1]};
  }
  const at::Tensor y = added.defined() ? x + added : x;
  return {y, plain_norm(y, norm)};
}

CodedNorm add_coded_norm(const at::Tensor& x, const at::Tensor& added, const NormWeights& norm) {
  const bool usable = norm_is_usable(x, norm) && !any_trains({norm.weight, norm.bias}) &&
                      (!added.defined() || kernels::usable({x, added}));
  if (!usable) {
    const auto [stream, normed] = add_norm(x, added, norm);
    return {stream, normed, {}, {}};
  }
  kernels::Normed made;
  const bool back = at::GradMode::is_enabled() && any_trains({x, added});
  const auto both = AddCodedNorm::apply(x, some(added), norm.weight, some(norm.bias), norm.eps,
                                        norm.centred, back, &made);
  return {both[0], both[1], made.codes, made.code_scales};
}

std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, const NormWeights& norm,
                                              const at::Tensor& weight) {
  if (norm_is_usable(x, norm) && kernels::usable({x, weight})) {
    const auto both =
        NormLinear::apply(x, norm.weight, some(norm.bias), weight, norm.eps, norm.centred);
    return {both[0], both[1]};
  }
  if (codes_of(weight)) {
    const auto [on, normed] = add_norm(x, {}, norm);
    return {on, nn::linear(normed, weight)};
  }
  return {x, nn::linear(plain_norm(x, norm), weight)};
}

at::Tensor add_gated_linear(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& weight,
                            const at::Tensor& gate) {
  return add_gated(x, inner, weight, gate, /*gelu=*/false);
}

at::Tensor add_gated_gelu_linear(const at::Tensor& x, const at::Tensor& u, const at::Tensor& weight,
                                 const at::Tensor& gate) {
  return add_gated(x, u, weight, gate, /*gelu=*/true);
}

}  // namespace floe::nn
