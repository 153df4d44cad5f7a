// The results of matrix products and of attention that a checkpointed module keeps for its rerun.
//
// Note [Kept products]
// Products are met below autograd, where torch's dispatcher calls the kernel of an operator:
// through a dispatch key that is on while a first run fills a KeptProducts or a rerun drains it.
// In the rerun autograd makes the same nodes as ever, on the rerun's own inputs, and in place of
// the kernel's result they get the kept one. So it does not matter who calls the operator: a layer
// of floe's, the forward of a fused step, a foreign module, under autocast or not. Kernels that
// the dispatcher does not know say what they give (`keep_results`). Both runs meet the same
// products in the same order. Where they do not (an operator chooses another way with gradients
// than without), the rerun computes from there on; where somebody has written into a kept result,
// it computes that one.
// Not kept are
//   - products with at least eight times as many columns as they sum over (the second half of an
//     adapter, scores of attention that is not fused): computing them again costs little,
//     keeping them much;
//   - attention with dropout: its kernel draws the random numbers that the rerun must draw too;
//   - a product that the module returns, or adds to what it returns (`leaves`): its backward reads
//     its factors only, so the rerun is given zeros of its shape.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "floe/nn/activations/kept_tensor.h"
#include "floe/nn/boundary.h"

namespace floe::nn {

// Whether this thread is in one of two runs, a first one whose products are kept or its rerun: they
// must choose alike, though only the second has gradients.
bool runs_twice();

// One product as both runs know it.
struct ProductId {
  std::string_view name;                         // of the operator; lives as long as the program
  c10::SmallVector<std::int64_t, 16> signature;  // shapes and dtypes of its tensors
  bool operator==(const ProductId&) const = default;

  void add(const at::Tensor& tensor);
};

class KeptProducts {
 public:
  using Values = std::vector<c10::IValue>;

  // While it lives, this thread's products are kept; `module` is the one that runs.
  class Fill;
  // While it lives, this thread's products are taken from here. `consume`: and forgotten here.
  class Drain;

  explicit KeptProducts(const KeptActivations& how) : how_(how) {}

  // The first run is over and gave these.
  void finish(const TensorRefs& outputs);

  void come_back();
  void settle();

  // `linear`: the product's backward does not read its result.
  void record(ProductId id, const Values& results, bool linear);
  // The next product's results, if it is this one.
  std::optional<Values> take(const ProductId& id);

 private:
  struct Product {
    ProductId id;
    std::vector<KeptTensorPtr> tensors;  // of each result; null: it is none
    Values others;                       // of each result that is none
    bool linear = false;
    bool has_step = false;  // see `keep_step`
    bool unread = false;    // its tensor is gone, and was like this:
    std::vector<std::int64_t> sizes;
    at::TensorOptions options;
  };
  friend at::Tensor leaves(const BoundarySlot& module, at::Tensor product);
  friend bool step_is_kept(const at::Tensor& product);
  friend void keep_step(const at::Tensor& product);

  bool last_is(const at::Tensor& product) const;
  void forget_last();
  void send_last();

  KeptActivations how_;
  std::vector<Product> products_;
  std::size_t next_ = 0;  // that is taken
  bool consume_ = false;
  at::Tensor taken_with_step_;  // the last one, if its value has the step already
};

class KeptProducts::Fill {
 public:
  Fill(KeptProducts& products, const BoundarySlot& module);
  ~Fill();
  Fill(const Fill&) = delete;
  Fill& operator=(const Fill&) = delete;

 private:
  KeptProducts* products_before_;
  const BoundarySlot* module_before_;
  c10::impl::IncludeDispatchKeyGuard meets_products_;
};

class KeptProducts::Drain {
 public:
  Drain(KeptProducts& products, bool consume);
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  KeptProducts *source_before_, *sink_before_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> meets_products_;
};

// The results of a kernel that is a product in the sense above: computed, or taken from what was
// kept. `name` lives as long as the program.
std::vector<at::Tensor> keep_results(std::string_view name, at::TensorList inputs,
                                     const std::function<std::vector<at::Tensor>()>& compute);

// Likewise for one matrix product x [rows, in] · weight [out, in]ᵀ, under the same rules as torch's
// own.
at::Tensor keep_product(std::string_view name, const at::Tensor& x, const at::Tensor& weight,
                        const std::function<at::Tensor()>& compute);

// Says of a product's result that it is added to what leaves the module, possibly after dropout,
// and that nothing else reads it. Gives the result.
at::Tensor leaves(const BoundarySlot& module, at::Tensor product);

// For a step that changes a product's result in place. In the first run: what was done belongs to
// what is kept. In the rerun: whether the value has it already.
void keep_step(const at::Tensor& product);
bool step_is_kept(const at::Tensor& product);

}  // namespace floe::nn
