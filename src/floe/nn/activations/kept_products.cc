#include "floe/nn/activations/kept_products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <utility>

namespace floe::nn {
namespace {

// Torch keeps it for programs outside: below autograd, above all kernels, and used by nobody here.
constexpr auto kKey = c10::DispatchKey::Fake;
// A product is computed again if it has so many times more columns than it sums over.
constexpr std::int64_t kWide = 8;

using torch::jit::Stack;

struct Current {
  KeptProducts* source = nullptr;        // of the rerun
  KeptProducts* sink = nullptr;          // of the first run
  const BoundarySlot* module = nullptr;  // whose first run it is
};
thread_local Current current;

ProductId id_of(const c10::OperatorHandle& op, const Stack& stack) {
  ProductId id{op.operator_name().name, {}};
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size()))
    if (value.isTensor()) id.add(value.toTensor());
  return id;
}

c10::IValue& argument(const c10::OperatorHandle& op, Stack& stack, int index) {
  return stack[stack.size() - op.schema().arguments().size() + static_cast<std::size_t>(index)];
}

void compute(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

void take_or_compute(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                     bool linear) {
  ProductId id = id_of(op, *stack);
  std::optional<KeptProducts::Values> kept;
  if (current.source) kept = current.source->take(id);
  if (kept) {
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (c10::IValue& value : *kept) stack->push_back(std::move(value));
  } else {
    compute(op, keys, stack);
  }
  if (current.sink)
    current.sink->record(std::move(id),
                         torch::jit::last(*stack, op.schema().returns().size()).vec(), linear);
}

// `kFirst`: which argument is the first of the two matrices (or stacks of them).
template <int kFirst>
void on_matrix_product(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard meet_once(kKey);
  const at::Tensor& second = argument(op, *stack, kFirst + 1).toTensor();
  if (second.size(-1) >= kWide * second.size(-2)) return compute(op, keys, stack);
  take_or_compute(op, keys, stack, /*linear=*/true);
}

void on_convolution(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard meet_once(kKey);
  take_or_compute(op, keys, stack, /*linear=*/true);
}

void on_attention(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard meet_once(kKey);
  const auto& schema = op.schema();
  const int dropout = *schema.argumentIndexWithName("dropout_p");
  if (argument(op, *stack, dropout).toDouble() > 0) return compute(op, keys, stack);
  // The first run is without gradients, but what its backward needs must come out of it.
  if (const auto sums = schema.argumentIndexWithName("compute_log_sumexp"); sums && current.sink)
    argument(op, *stack, *sums) = true;
  take_or_compute(op, keys, stack, /*linear=*/false);
}

// How torch shapes a product's result. It counts writes anew, as if nobody had the result before.
void on_unsafe_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto counter = argument(op, *stack, 0).toTensor().unsafeGetTensorImpl()->version_counter();
  compute(op, keys, stack);
  stack->back().toTensor().unsafeGetTensorImpl()->set_version_counter(counter);
}

}  // namespace

bool runs_twice() { return current.sink || current.source; }

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, Fake, library) {
  library.impl("mm", torch::CppFunction::makeFromBoxedFunction<&on_matrix_product<0>>());
  library.impl("bmm", torch::CppFunction::makeFromBoxedFunction<&on_matrix_product<0>>());
  library.impl("addmm", torch::CppFunction::makeFromBoxedFunction<&on_matrix_product<1>>());
  library.impl("baddbmm", torch::CppFunction::makeFromBoxedFunction<&on_matrix_product<1>>());
  library.impl("_unsafe_view", torch::CppFunction::makeFromBoxedFunction<&on_unsafe_view>());
  library.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&on_convolution>());
  for (const char* name :
       {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_flash_attention_forward", "_efficient_attention_forward", "_cudnn_attention_forward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_attention>());
}

void ProductId::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  signature.append(tensor.sizes().begin(), tensor.sizes().end());
  signature.push_back(-1 - static_cast<std::int64_t>(tensor.scalar_type()));
}

void KeptProducts::record(ProductId id, const Values& results, bool linear) {
  send_last();
  Product product;
  product.id = std::move(id);
  product.linear = linear;
  for (const c10::IValue& value : results) {
    const bool is_tensor = value.isTensor() && value.toTensor().defined();
    product.tensors.push_back(is_tensor ? std::make_shared<KeptTensor>(value.toTensor()) : nullptr);
    product.others.push_back(is_tensor ? c10::IValue() : value);
  }
  products_.push_back(std::move(product));
}

std::optional<KeptProducts::Values> KeptProducts::take(const ProductId& id) {
  taken_with_step_.reset();
  if (next_ == products_.size()) return std::nullopt;
  Product& product = products_[next_];
  if (product.id != id) {
    next_ = products_.size();
    return std::nullopt;
  }
  next_ += 1;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (product.unread) return Values{at::zeros({}, product.options).expand(product.sizes)};
  for (const KeptTensorPtr& tensor : product.tensors)
    if (tensor && tensor->changed()) return std::nullopt;
  Values results;
  for (std::size_t i = 0; i < product.tensors.size(); ++i) {
    KeptTensorPtr& tensor = product.tensors[i];
    results.push_back(tensor ? c10::IValue(tensor->get()) : product.others[i]);
    if (consume_) tensor.reset();
  }
  if (product.has_step) taken_with_step_ = results[0].toTensor();
  return results;
}

bool KeptProducts::last_is(const at::Tensor& product) const {
  if (products_.empty() || products_.back().unread) return false;
  const KeptTensorPtr& last = products_.back().tensors[0];
  return last && last->shares_storage_with(product) && !last->changed();
}

void KeptProducts::forget_last() {
  Product& last = products_.back();
  const at::Tensor tensor = last.tensors[0]->get();
  last.unread = true;
  last.sizes = tensor.sizes().vec();
  last.options = tensor.options();
  last.tensors.clear();
}

// One product later than it was made: until then it may be changed in place, or be said
// to be unread.
void KeptProducts::send_last() {
  if (!how_.in_host || products_.empty()) return;
  for (const KeptTensorPtr& tensor : products_.back().tensors)
    if (tensor && !tensor->changed()) tensor->leave(how_.in_host_from);
}

void KeptProducts::finish(const TensorRefs& outputs) {
  // What is the module's only result has no other reader in it.
  if (outputs.size() == 1 && last_is(*outputs[0]) && products_.back().linear) forget_last();
  send_last();
}

void KeptProducts::come_back() {
  for (const Product& product : products_)
    for (const KeptTensorPtr& tensor : product.tensors)
      if (tensor) tensor->come_back();
}

void KeptProducts::settle() {
  for (const Product& product : products_)
    for (const KeptTensorPtr& tensor : product.tensors)
      if (tensor) tensor->settle();
}

KeptProducts::Fill::Fill(KeptProducts& products, const BoundarySlot& module)
    : products_before_(std::exchange(current.sink, &products)),
      module_before_(std::exchange(current.module, &module)),
      meets_products_(kKey) {}

KeptProducts::Fill::~Fill() {
  current.sink = products_before_;
  current.module = module_before_;
}

KeptProducts::Drain::Drain(KeptProducts& products, bool consume)
    : source_before_(std::exchange(current.source, nullptr)),
      sink_before_(std::exchange(current.sink, nullptr)) {
  if (products.products_.empty()) return;
  products.next_ = 0;
  products.consume_ = consume;
  current.source = &products;
  meets_products_.emplace(kKey);
}

KeptProducts::Drain::~Drain() {
  if (current.source) current.source->taken_with_step_.reset();
  current.source = source_before_;
  current.sink = sink_before_;
}

namespace {

std::vector<at::Tensor> take_or_call(ProductId id, bool linear,
                                     const std::function<std::vector<at::Tensor>()>& compute) {
  const c10::impl::ExcludeDispatchKeyGuard meet_once(kKey);
  std::vector<at::Tensor> results;
  if (const auto kept = current.source ? current.source->take(id) : std::nullopt)
    for (const c10::IValue& value : *kept) results.push_back(value.toTensor());
  else
    results = compute();
  if (current.sink) current.sink->record(std::move(id), {results.begin(), results.end()}, linear);
  return results;
}

}  // namespace

std::vector<at::Tensor> keep_results(std::string_view name, at::TensorList inputs,
                                     const std::function<std::vector<at::Tensor>()>& compute) {
  if (!current.source && !current.sink) return compute();
  ProductId id{name, {}};
  for (const at::Tensor& input : inputs) id.add(input);
  return take_or_call(std::move(id), /*linear=*/false, compute);
}

at::Tensor keep_product(std::string_view name, const at::Tensor& x, const at::Tensor& weight,
                        const std::function<at::Tensor()>& compute) {
  if (!current.source && !current.sink) return compute();
  if (weight.size(0) >= kWide * weight.size(1)) {
    const c10::impl::ExcludeDispatchKeyGuard meet_nothing(kKey);
    return compute();
  }
  ProductId id{name, {}};
  id.add(x);
  id.add(weight);
  return take_or_call(std::move(id), /*linear=*/true,
                      [&] { return std::vector<at::Tensor>{compute()}; })[0];
}

at::Tensor leaves(const BoundarySlot& module, at::Tensor product) {
  KeptProducts* sink = current.module == &module ? current.sink : nullptr;
  if (sink && sink->last_is(product) && sink->products_.back().linear) sink->forget_last();
  return product;
}

void keep_step(const at::Tensor& product) {
  KeptProducts* sink = current.sink;
  if (!sink || sink->products_.empty()) return;
  KeptProducts::Product& last = sink->products_.back();
  if (last.unread || !last.tensors[0] || !last.tensors[0]->shares_storage_with(product)) return;
  last.tensors[0]->accept_changes();
  last.has_step = true;
}

bool step_is_kept(const at::Tensor& product) {
  return current.source && current.source->taken_with_step_.defined() &&
         current.source->taken_with_step_.is_alias_of(product);
}

}  // namespace floe::nn
