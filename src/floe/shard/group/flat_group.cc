#include "floe/shard/group/flat_group.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/nn/activations/host_store.h"
#include "floe/nn/products/linear.h"
#include "floe/shard/group/eight_bit_rows.h"

namespace floe::shard {
namespace {

// A one-dimensional tensor at the beginning of a storage that has a size but no memory.
at::Tensor storage_without_memory(std::int64_t numel, c10::ScalarType dtype, std::int64_t bytes,
                                  c10::Device device) {
  // On the meta device torch asks for storage that could grow, although it never does.
  const bool meta = device.is_meta();
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                       at::DataPtr(nullptr, device), meta ? c10::GetAllocator(c10::kMeta) : nullptr,
                       /*resizable=*/meta);
  return at::empty({0}, at::TensorOptions().dtype(dtype).device(device))
      .set_(std::move(storage), 0, {numel}, {1});
}

// Elements of another dtype in the storage of a tensor, `offset` bytes from its beginning.
at::Tensor part_of(const at::Tensor& tensor, std::int64_t offset, std::int64_t numel,
                   c10::ScalarType dtype) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  return at::empty({0}, tensor.options().dtype(dtype))
      .set_(tensor.storage(), offset / size, {numel}, {1});
}

}  // namespace

FlatGroup::FlatGroup(std::size_t id, const PlannedGroup& plan, const ShardPlan& whole,
                     Context& context)
    : id_(id),
      plan_(&plan),
      whole_plan_(&whole),
      context_(context),
      mesh_(context.world->mesh(plan.shard_size)),
      shard_rank_(mesh_.shard->rank()),
      gradients_(*this, context, mesh_) {
  const at::AutoGradMode grad_off(false);
  slice_ = at::empty(
      {plan_->eight_bit() ? plan_->eight_bit_slices.slice_bytes() : plan_->layout.slice_numel()},
      slice_options());
  make_room_for_transposed();
  // Also of a set that drops its masters: what the files say is not forgotten before it has
  // trained.
  if (plan_->masters_away())
    masters_ = OffloadableSlice(
        nn::store_empty(plan_->layout.slice_numel(), plan_->master_dtype, context_.device),
        /*stored=*/true);
}

FlatGroup::~FlatGroup() {
  gather_ = {};
  if (buffer_.defined()) attach(nullptr);  // the model may outlive the engine, its buffers do not
}

void FlatGroup::enter(GroupState next) {
  require<ShardError>(may_follow(state_, next), "group '", name(), "' is ", name_of(state_),
                      " and cannot become ", name_of(next),
                      "; after a failure call Engine::abandon before the next pass");
  state_ = next;
}

comm::Group* FlatGroup::copies() const {
  const bool alone =
      mesh_.replicate_size() == 1 || context_.world->backend() == comm::Backend::fake;
  return alone ? nullptr : mesh_.replicate.get();
}

const PlannedParameter& FlatGroup::parameter(std::size_t index) const {
  return whole_plan_->parameters[plan_->parameters[index]];
}

at::TensorOptions FlatGroup::slice_options() const {
  const auto options =
      at::TensorOptions().dtype(plan_->eight_bit() ? at::kByte : plan_->storage_dtype);
  const bool in_host = plan_->offloaded || context_.device.is_cpu();
  return in_host ? options.pinned_memory(plan_->offloaded && !context_.device.is_cpu())
                 : options.device(context_.device);
}

void FlatGroup::adopt_parameters() {
  make_views();
  set_trainable(plan_->active);
  count_references();
}

void FlatGroup::make_views() {
  const at::AutoGradMode grad_off(false);
  if (!plan_->in_place())
    flat_ = storage_without_memory(plan_->layout.padded_numel(),
                                   plan_->multiplied ? plan_->storage_dtype : plan_->param_dtype,
                                   plan_->gathered_bytes(), context_.device);
  else if (plan_->multiplied)
    flat_ = plan_->eight_bit_slices.codes(slice_).view(plan_->storage_dtype);
  else
    flat_ = slice_;
  enter(plan_->in_place() ? GroupState::in_place : GroupState::sliced);
  for (std::size_t i = 0; i < plan_->parameters.size(); ++i) {
    at::Tensor leaf = this->leaf(i);
    leaf.set_data(
        flat_.narrow(0, plan_->layout.offset(i), plan_->layout.numel(i)).view(parameter(i).shape));
    leaf.mutable_grad().reset();
    nn::detach_codes(leaf);
  }
  if (plan_->multiplied) attach_codes();
  if (plan_->in_place()) return;
  unreadable_ = c10::Storage(
      c10::Storage::use_byte_size_t(), static_cast<std::size_t>(plan_->gathered_bytes()),
      at::DataPtr(nullptr, context_.device), /*allocator=*/nullptr, /*resizable=*/false);
  unreadable_.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      str("a parameter of '", plan_->name,
          "' was read while it is released: parameters are whole only ",
          "while their unit runs; call modules as module(x) or nn::call(module, x), not "
          "module->forward(x)"));
  attach(nullptr);
}

void FlatGroup::make_room_for_transposed() {
  transposed_ = at::Tensor();
  if (plan_->multiplied && plan_->transposed && plan_->in_place())
    transposed_ = at::empty({plan_->layout.numel()}, slice_options());
}

void FlatGroup::attach_codes() {
  const kernels::EightBitSlices& rows = plan_->eight_bit_slices;
  const CodesLayout places = plan_->codes_layout();
  flat_transposed_ = at::Tensor();
  if (plan_->in_place()) {
    flat_scales_ = rows.scales(slice_);
    if (plan_->transposed) flat_transposed_ = transposed_.view(plan_->storage_dtype);
  } else {
    flat_scales_ = part_of(flat_, places.scales, rows.num_rows, at::kFloat);
    if (plan_->transposed)
      flat_transposed_ =
          part_of(flat_, places.transposed, plan_->layout.numel(), plan_->storage_dtype);
  }
  for (std::size_t i = 0; i < plan_->parameters.size(); ++i) {
    const std::vector<std::int64_t>& shape = parameter(i).shape;
    nn::WeightCodes codes{flat_scales_.narrow(0, rows.matrices[i].rows_before, shape[0]), {}};
    if (plan_->transposed)
      codes.transposed = flat_transposed_.narrow(0, plan_->layout.offset(i), plan_->layout.numel(i))
                             .view({shape[1], shape[0]});
    nn::attach_codes(leaf(i), std::move(codes));
  }
}

void FlatGroup::transpose(const at::Tensor& codes, const at::Tensor& out) const {
  for (std::size_t i = 0; i < plan_->parameters.size(); ++i) {
    const std::vector<std::int64_t>& shape = parameter(i).shape;
    const auto matrix = [&](const at::Tensor& flat, std::int64_t rows, std::int64_t columns) {
      return flat.view(at::kByte)
          .narrow(0, plan_->layout.offset(i), plan_->layout.numel(i))
          .view({rows, columns});
    };
    kernels::transpose_bytes(matrix(codes, shape[0], shape[1]), matrix(out, shape[1], shape[0]));
  }
}

void FlatGroup::set_trainable(bool trainable) {
  accumulators_.clear();
  for (std::size_t i = 0; i < plan_->parameters.size(); ++i) {
    leaf(i).requires_grad_(trainable);
    // Held here so that reference counts do not depend on which graphs are alive.
    if (trainable) accumulators_.push_back(torch::autograd::impl::grad_accumulator(leaf(i)));
  }
}

// ---- sets ----

void FlatGroup::values_changed() {
  if (masters_.defined())
    store(masters_.values());
  else
    slice_changed();
}

void FlatGroup::store(const at::Tensor& values) {
  const at::AutoGradMode grad_off(false);
  if (plan_->eight_bit())
    store_slice(*this, values);
  else
    slice_.copy_(values);
  slice_changed();
}

void FlatGroup::slice_changed() {
  const at::AutoGradMode grad_off(false);
  if (transposed_.defined()) transpose(plan_->eight_bit_slices.codes(slice_), transposed_);
}

void FlatGroup::deactivate() {
  if (plan_->masters_away()) {
    const at::AutoGradMode grad_off(false);
    const at::Tensor masters = std::exchange(
        slice_, plan_->eight_bit()
                    ? at::empty({plan_->eight_bit_slices.slice_bytes()}, slice_options())
                    : at::empty_like(slice_, slice_.options().dtype(plan_->storage_dtype)));
    make_room_for_transposed();
    store(masters);
    if (plan_->rest == Rest::offload) {
      masters_ = OffloadableSlice(masters);
      masters_.store();
    }
    make_views();
  }
  gradients_.forget_memory();
  set_trainable(false);
  count_references();
}

void FlatGroup::activate() {
  const at::AutoGradMode grad_off(false);
  if (slice_.scalar_type() != plan_->storage_dtype) {
    if (masters_.defined()) {
      masters_.fetch(slice_.device(), context_.moves);
      slice_ = masters_.values();
      masters_.drop();
    } else {
      slice_ = slice_.to(plan_->storage_dtype);
    }
    transposed_ = at::Tensor();
    make_views();
  }
  {
    const at::AutoGradMode grad_on(true);
    set_trainable(true);
  }
  count_references();
}

void FlatGroup::rebind(std::size_t id, const PlannedGroup& plan, const ShardPlan& whole) {
  id_ = id;
  plan_ = &plan;
  whole_plan_ = &whole;
}

void FlatGroup::forget_values() {
  accumulators_.clear();
  gradients_.forget_memory();
  slice_ = transposed_ = flat_ = flat_scales_ = flat_transposed_ = at::Tensor();
  masters_.drop();
}

// ---- gathering ----

void FlatGroup::attach(void* data) {
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(data, context_.device));
  storage->set_nbytes(data ? static_cast<std::size_t>(plan_->gathered_bytes()) : 0);
  for (std::size_t i = 0; i < plan_->parameters.size(); ++i)
    leaf(i).unsafeGetTensorImpl()->set_storage_keep_dtype(data ? flat_.storage() : unreadable_);
}

void FlatGroup::begin_gather(std::string_view unit, bool ahead) {
  if (state_ != GroupState::sliced) return;
  const at::AutoGradMode grad_off(false);
  buffer_ = context_.pool.take(plan_->gathered_bytes());
  attach(buffer_.mutable_data_ptr());
  if (plan_->staging_bytes() > 0) staging_ = context_.pool.take(plan_->staging_bytes());
  enter(GroupState::gathering);
  if (plan_->shard_size > 1) {
    context_.collectives.add("gather", id_, plan_->name, plan_->moved_bytes());
    context_.emit({.kind = ahead ? Event::Kind::prefetch : Event::Kind::gather,
                   .unit = unit,
                   .group = plan_->name,
                   .bytes = plan_->moved_bytes(),
                   .dtype = plan_->eight_bit() ? plan_->storage_dtype : plan_->param_dtype});
  }
  const auto issue = [&]() -> comm::Work {
    // Not the parameters' own storage: a backend may let go of its tensors late, and references
    // decide what backward needs.
    const at::Tensor whole =
        plan_->eight_bit() ? staging_
                           : buffer_.narrow(0, 0, plan_->gathered_bytes()).view(plan_->param_dtype);
    if (!whole.defined()) return {};  // the values are made from the slice, which is all there is
    const std::int64_t numel = slice_.numel();
    at::Tensor own = whole.narrow(0, shard_rank_ * numel, numel);
    const bool same = slice_.scalar_type() == own.scalar_type() && slice_.device() == own.device();
    if (plan_->shard_size == 1) {
      own.copy_(slice_, /*non_blocking=*/true);
      return {};
    }
    if (!same) own.copy_(slice_, /*non_blocking=*/true);  // the cast lands where it is sent from
    return mesh_.shard->all_gather(whole, same ? slice_ : own, plan_->name);
  };
  gather_ = plan_->eight_bit() ? context_.side.run(issue, [this] { make_values(); })
                               : context_.side.run(issue);
}

void FlatGroup::make_values() {
  if (plan_->multiplied) {
    const at::AutoGradMode grad_off(false);
    kernels::separate(plan_->eight_bit_slices, staging_, flat_.view(at::kByte), flat_scales_);
    if (plan_->transposed) transpose(flat_, flat_transposed_);
    return;
  }
  kernels::from_eight_bit(plan_->eight_bit_slices, plan_->storage_dtype,
                          staging_.defined() ? staging_ : slice_, flat_);
}

void FlatGroup::give_back_staging() {
  if (!staging_.defined()) return;
  context_.pool.give_back(std::move(staging_),
                          context_.forecast->parameter_buffer_ahead(plan_->staging_bytes()));
  staging_ = at::Tensor();
}

void FlatGroup::finish_gather(std::string_view unit) {
  if (state_ != GroupState::gathering) return;
  if (plan_->shard_size > 1) context_.emit(Event::Kind::begin_wait, unit, plan_->name, 0);
  const double seconds = gather_.timed_wait();
  give_back_staging();
  enter(GroupState::gathered);
  // Handles that were alive when the model was sharded may have gone since.
  references_at_rest_ = std::min(references_at_rest_, references());
  if (plan_->shard_size > 1) context_.emit(Event::Kind::wait, unit, plan_->name, 0, seconds);
}

void FlatGroup::drop(std::string_view unit, bool again_soon) {
  holds_ -= 1;
  if (holds_ == 0 && !again_soon) release(unit);
}

void FlatGroup::reset() noexcept {
  holds_ = 0;
  gradients_.reset();
  try {
    release("");
  } catch (const std::exception& e) {
    log::debug("given up: ", e.what());
  }
}

void FlatGroup::drop_unused() {
  if (holds_ == 0) release("");
}

void FlatGroup::release(std::string_view unit) {
  if (state_ == GroupState::sliced || state_ == GroupState::in_place) return;
  std::exception_ptr failure;  // a gather that failed is released all the same
  try {
    gather_.wait();
  } catch (...) {
    failure = std::current_exception();
  }
  give_back_staging();
  attach(nullptr);
  context_.pool.give_back(std::move(buffer_),
                          context_.forecast->parameter_buffer_ahead(plan_->gathered_bytes()));
  buffer_ = at::Tensor();
  enter(GroupState::sliced);
  if (plan_->shard_size > 1)
    context_.emit(Event::Kind::release, unit, plan_->name, plan_->gathered_bytes());
  if (failure) std::rethrow_exception(failure);
}

std::int64_t FlatGroup::references() const {
  auto count = static_cast<std::int64_t>(flat_.storage().use_count());
  // While the group is sliced its parameters stand on the other storage; they count all the same.
  if (state_ == GroupState::sliced) count += static_cast<std::int64_t>(plan_->parameters.size());
  for (std::size_t i = 0; i < plan_->parameters.size(); ++i)
    count += static_cast<std::int64_t>(leaf(i).use_count());
  return count;
}

at::Tensor FlatGroup::gathered(const at::Tensor& slice, const char* what) {
  if (plan_->shard_size == 1) return slice.to(context_.device, slice.scalar_type(), false, true);
  const at::Tensor on_device = slice.to(context_.device);
  at::Tensor whole = at::empty({plan_->shard_size * slice.numel()}, on_device.options());
  context_.collectives.add(what, id_, plan_->name, static_cast<std::int64_t>(whole.nbytes()));
  mesh_.shard->all_gather(whole, on_device, plan_->name).wait();
  return whole;
}

at::Tensor FlatGroup::gather_values() {
  const at::AutoGradMode grad_off(false);
  if (!plan_->eight_bit_alone()) return gathered(values(), "gather values");
  const at::Tensor stored = gather_stored();
  at::Tensor whole =
      at::empty({plan_->layout.padded_numel()}, stored.options().dtype(plan_->param_dtype));
  kernels::from_eight_bit(plan_->eight_bit_slices, plan_->storage_dtype, stored, whole);
  return whole;
}

at::Tensor FlatGroup::gather_stored() {
  const at::AutoGradMode grad_off(false);
  return gathered(slice_, "gather stored");
}

at::Tensor FlatGroup::gather_gradient() {
  const at::AutoGradMode grad_off(false);
  return gradient().defined() ? gathered(gradient(), "gather gradient") : at::Tensor();
}

}  // namespace floe::shard
