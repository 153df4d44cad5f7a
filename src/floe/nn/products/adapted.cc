#include "floe/nn/products/adapted.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "floe/nn/activations/kept_products.h"
#include "floe/nn/boundary.h"
#include "floe/nn/fused.h"
#include "floe/nn/products/linear.h"
#include "floe/nn/products/rows.h"

namespace floe::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One flag of a node's inputs and two of each weight, as a node keeps them.
struct Flags {
  bool inputs = false;
  std::vector<bool> bias, adapter;

  void save(AutogradContext& context, const char* key) const {
    std::vector<std::int64_t> flags{inputs ? 1 : 0};
    for (std::size_t i = 0; i < bias.size(); ++i)
      flags.insert(flags.end(), {bias[i] ? 1 : 0, adapter[i] ? 1 : 0});
    context.saved_data[key] = flags;
  }
  static Flags load(AutogradContext& context, const char* key) {
    const auto saved = context.saved_data[key].toIntVector();
    Flags flags;
    flags.inputs = saved[0] != 0;
    for (std::size_t i = 1; i < saved.size(); i += 2) {
      flags.bias.push_back(saved[i] != 0);
      flags.adapter.push_back(saved[i + 1] != 0);
    }
    return flags;
  }
};

// What a node's list of tensors holds: x, or gate and up, and then each weight's.
struct Layout {
  Flags has;  // of the inputs: they are gate and up
  std::vector<double> scales;

  bool gated() const { return has.inputs; }
  std::size_t num_inputs() const { return gated() ? 2 : 1; }

  void save(AutogradContext& context) const {
    has.save(context, "layout");
    context.saved_data["scales"] = scales;
  }
  static Layout load(AutogradContext& context) {
    return {Flags::load(context, "layout"), context.saved_data["scales"].toDoubleVector()};
  }
};

std::vector<at::Tensor> list_of(std::vector<at::Tensor> inputs,
                                const std::vector<AdaptedWeight>& weights) {
  for (const AdaptedWeight& weight : weights) {
    inputs.push_back(weight.weight);
    if (weight.bias.defined()) inputs.push_back(weight.bias);
    if (weight.a.defined()) inputs.insert(inputs.end(), {weight.a, weight.b});
  }
  return inputs;
}

Layout layout_of(bool gated, const std::vector<AdaptedWeight>& weights) {
  Layout layout;
  layout.has.inputs = gated;
  for (const AdaptedWeight& weight : weights) {
    layout.has.bias.push_back(weight.bias.defined());
    layout.has.adapter.push_back(weight.a.defined());
    layout.scales.push_back(weight.scale);
  }
  return layout;
}

std::vector<AdaptedWeight> weights_in(at::TensorList list, const Layout& layout) {
  std::vector<AdaptedWeight> weights(layout.scales.size());
  std::size_t next = layout.num_inputs();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].weight = list[next++];
    if (layout.has.bias[i]) weights[i].bias = list[next++];
    if (layout.has.adapter[i]) {
      weights[i].a = list[next++];
      weights[i].b = list[next++];
    }
    weights[i].scale = layout.scales[i];
  }
  return weights;
}

// The adapters' A below one another, and where each one's rows are.
class Joined {
 public:
  explicit Joined(const std::vector<AdaptedWeight>& weights) {
    std::vector<at::Tensor> all;
    for (const AdaptedWeight& weight : weights) {
      const std::int64_t rank = weight.a.defined() ? weight.a.size(0) : 0;
      places_.push_back({total_, rank, weight.scale});
      total_ += rank;
      if (rank > 0) all.push_back(weight.a);
    }
    a_ = all.size() == 1 ? all[0] : at::cat(all);
  }
  const at::Tensor& a() const { return a_; }
  at::Tensor columns(const at::Tensor& wide, std::size_t i) const {
    return wide.narrow(1, places_[i].first, places_[i].count);
  }
  at::Tensor rows(const at::Tensor& tall, std::size_t i) const {
    return tall.narrow(0, places_[i].first, places_[i].count);
  }
  // [rows, all ranks], the columns of each times its scale.
  at::Tensor scaled(const at::Tensor& wide) const {
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (places_[i].count > 0) parts.push_back(columns(wide, i) * places_[i].scale);
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }

 private:
  struct Place {
    std::int64_t first, count;
    double scale;
  };
  at::Tensor a_;  // [all ranks, in]
  std::vector<Place> places_;
  std::int64_t total_ = 0;
};

// x as rows [rows, in] through one weight; `low` [rows, rank] is its s (x Aᵀ).
at::Tensor adapted_product(const at::Tensor& x, const at::Tensor& rows, const AdaptedWeight& w,
                           const at::Tensor& low) {
  return keep_product("floe::adapted_product", rows, w.weight, [&] {
    if (codes_of(w.weight)) {
      at::Tensor y = coded_product(x, w.weight, w.bias);
      return low.defined() ? y.addmm_(low, w.b.t()) : y;
    }
    if (!low.defined()) return at::linear(rows, w.weight, some(w.bias));
    at::Tensor y = w.bias.defined() ? at::addmm(w.bias, low, w.b.t()) : low.mm(w.b.t());
    return y.addmm_(rows, w.weight.t());
  });
}

struct AdaptedLinears : torch::autograd::Function<AdaptedLinears> {
  static variable_list forward(AutogradContext* context, at::TensorList list,
                               const Layout& layout) {
    const std::vector<AdaptedWeight> weights = weights_in(list, layout);
    const at::Tensor x = layout.gated() ? gated_silu(list[0], list[1]) : list[0];
    const at::Tensor rows = rows_of(x);
    const Joined joined(weights);
    const at::Tensor low = joined.scaled(rows.mm(joined.a().t()));
    variable_list results;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const AdaptedWeight& w = weights[i];
      const at::Tensor y =
          adapted_product(x, rows, w, w.a.defined() ? joined.columns(low, i) : at::Tensor());
      // No view, which could not be changed in place.
      results.push_back(at::_unsafe_view(y, with_columns(x, w.weight.size(0))));
    }
    save(*context, list, layout, weights, low);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Layout layout = Layout::load(*context);
    const Flags trains = Flags::load(*context, "trains");
    std::size_t next = layout.num_inputs() + 1;
    const at::Tensor& low = saved[layout.num_inputs()];
    std::vector<AdaptedWeight> weights(layout.scales.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i].weight = saved[next++];
      weights[i].scale = layout.scales[i];
      if (!layout.has.adapter[i]) continue;
      weights[i].a = saved[next++];
      weights[i].b = saved[next++];
    }
    const Joined joined(weights);

    // Of x Aᵀ, all ranks side by side.
    std::vector<at::Tensor> low_grads, slopes;
    std::vector<at::Tensor> b_grads(weights.size()), bias_grads(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor slope = rows_of(grads[i]);
      slopes.push_back(slope);
      if (trains.bias[i]) bias_grads[i] = slope.sum(0);
      if (!layout.has.adapter[i]) continue;
      low_grads.push_back(slope.mm(weights[i].b));
      if (trains.adapter[i]) b_grads[i] = slope.t().mm(joined.columns(low, i));
    }
    const at::Tensor low_grad = joined.scaled(at::cat(low_grads, 1));
    at::Tensor a_grads;
    if (any(trains.adapter))
      a_grads =
          low_grad.t().mm(rows_of(layout.gated() ? gated_silu(saved[0], saved[1]) : saved[0]));

    variable_list result(layout.num_inputs());
    if (trains.inputs) {
      at::Tensor x_grad = input_grad(weights, slopes, low_grad, joined.a());
      if (layout.gated()) {
        std::tie(result[0], result[1]) =
            gated_silu_backward(x_grad.view(saved[0].sizes()), saved[0], saved[1]);
      } else {
        result[0] = x_grad.view(with_columns(grads[0], x_grad.size(1)));
      }
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      result.emplace_back();  // of the weight
      if (layout.has.bias[i]) result.push_back(bias_grads[i]);
      if (!layout.has.adapter[i]) continue;
      result.push_back(trains.adapter[i] ? joined.rows(a_grads, i) : at::Tensor());
      result.push_back(b_grads[i]);
    }
    result.emplace_back();  // of the layout
    return result;
  }

 private:
  static bool any(const std::vector<bool>& flags) {
    return std::find(flags.begin(), flags.end(), true) != flags.end();
  }

  static void save(AutogradContext& context, at::TensorList list, const Layout& layout,
                   const std::vector<AdaptedWeight>& weights, const at::Tensor& low) {
    Flags trains;
    for (std::size_t i = 0; i < layout.num_inputs(); ++i)
      trains.inputs = trains.inputs || list[i].requires_grad();
    for (const AdaptedWeight& w : weights) {
      trains.bias.push_back(w.bias.defined() && w.bias.requires_grad());
      trains.adapter.push_back(w.a.defined() && (w.a.requires_grad() || w.b.requires_grad()));
    }
    layout.save(context);
    trains.save(context, "trains");
    variable_list kept;
    // A gate's slope needs both of its factors, an adapter's needs x.
    const bool reads_x = any(trains.adapter) || (layout.gated() && trains.inputs);
    for (std::size_t i = 0; i < layout.num_inputs(); ++i)
      kept.push_back(reads_x ? list[i] : at::Tensor());
    kept.push_back(low);
    for (const AdaptedWeight& w : weights) {
      // Refers to the parameter, so that the engine gathers it for backward.
      kept.push_back(trains.inputs ? w.weight : at::Tensor());
      if (w.a.defined()) kept.insert(kept.end(), {w.a, w.b});
    }
    context.save_for_backward(kept);
  }

  static at::Tensor input_grad(const std::vector<AdaptedWeight>& weights,
                               const std::vector<at::Tensor>& slopes, const at::Tensor& low_grad,
                               const at::Tensor& a) {
    at::Tensor sum;
    bool has_low = false;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor& weight = weights[i].weight;
      if (codes_of(weight)) {
        const at::Tensor part = coded_product_back(slopes[i], weight);
        sum = sum.defined() ? sum.add_(part) : part;
        continue;
      }
      if (!sum.defined()) {
        sum = low_grad.mm(a);
        has_low = true;
      }
      sum.addmm_(slopes[i], weight);
    }
    return has_low ? sum : sum.addmm_(low_grad, a);
  }
};

}  // namespace

std::vector<at::Tensor> adapted_linears(const at::Tensor& x,
                                        const std::vector<AdaptedWeight>& weights) {
  const std::vector<at::Tensor> list = list_of({x}, weights);
  return AdaptedLinears::apply(at::TensorList(list), layout_of(/*gated=*/false, weights));
}

at::Tensor adapted_gated_silu_linear(const at::Tensor& gate, const at::Tensor& up,
                                     const AdaptedWeight& weight) {
  const std::vector<at::Tensor> list = list_of({gate, up}, {weight});
  return AdaptedLinears::apply(at::TensorList(list), layout_of(/*gated=*/true, {weight}))[0];
}

}  // namespace floe::nn
