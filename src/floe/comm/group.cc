#include "floe/comm/group.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "floe/comm/activity.h"
#include "floe/comm/backends.h"
#include "floe/core/error.h"

namespace floe::comm {

Work::Work(std::function<void()> wait, std::function<bool()> done)
    : state_(std::make_shared<State>(State{std::move(wait), std::move(done), {}, {}})) {}

void Work::set_name(std::string name, WaitFor kind) {
  if (!state_) return;
  state_->name = std::move(name);
  state_->kind = kind;
}

void Work::wait() {
  if (!state_) return;
  if (auto finish = std::exchange(state_->wait, nullptr)) {
    const Activity::Waiting waiting(state_->name, state_->kind);
    finish();
  }
  state_.reset();
}

bool Work::done() const { return !state_ || !state_->wait || (state_->done && state_->done()); }

std::string Group::describe(const char* kind, const std::string& label) const {
  return str(kind, " '", label, "' on rank ", rank_, " of ", size_, " (group ", name_, ")");
}

Work Group::named(Work work, const char* kind, const std::string& label, WaitFor waits) const {
  if (!work.pending()) return work;
  const std::string what = str(kind, " '", label, "' of ", name_);
  Activity::of_this_rank().issued(what);
  work.set_name(what, waits);
  return work;
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input,
                       const std::string& label) {
  require<CommError>(
      output.is_contiguous() && input.is_contiguous() && output.numel() == input.numel() * size_ &&
          output.scalar_type() == input.scalar_type(),
      describe("all-gather", label), " needs a contiguous output of ", size_, " times the input's ",
      input.numel(), " elements and of its dtype, got ", output.numel(), " elements");
  traffic_.all_gathers += 1;
  traffic_.all_gather_bytes += static_cast<std::int64_t>(output.nbytes());
  return named(do_all_gather(output, input, label), "all-gather", label, WaitFor::gather);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Reduce reduce,
                           const std::string& label) {
  require<CommError>(output.is_contiguous() && input.is_contiguous() &&
                         input.numel() == output.numel() * size_ &&
                         output.scalar_type() == input.scalar_type(),
                     describe("reduce-scatter", label), " needs a contiguous input of ", size_,
                     " times the output's ", output.numel(), " elements and of its dtype, got ",
                     input.numel(), " elements");
  traffic_.reduce_scatters += 1;
  traffic_.reduce_scatter_bytes += static_cast<std::int64_t>(input.nbytes());
  return named(do_reduce_scatter(output, input, reduce, label), "reduce-scatter", label,
               WaitFor::reduce);
}

Work Group::all_reduce(const at::Tensor& tensor, Reduce reduce, const std::string& label) {
  require<CommError>(tensor.is_contiguous(), describe("all-reduce", label),
                     " needs a contiguous tensor");
  traffic_.all_reduces += 1;
  traffic_.all_reduce_bytes += static_cast<std::int64_t>(tensor.nbytes());
  return named(do_all_reduce(tensor, reduce, label), "all-reduce", label, WaitFor::reduce);
}

Work Group::broadcast(const at::Tensor& tensor, int root, const std::string& label) {
  require<CommError>(tensor.is_contiguous() && root >= 0 && root < size_,
                     describe("broadcast", label), " needs a contiguous tensor and a root below ",
                     size_, ", got root ", root);
  traffic_.broadcasts += 1;
  traffic_.broadcast_bytes += static_cast<std::int64_t>(tensor.nbytes());
  return named(do_broadcast(tensor, root, label), "broadcast", label);
}

void Group::barrier(const std::string& label) {
  const at::Tensor token = at::zeros({1});
  named(do_all_reduce(token, Reduce::sum, label), "barrier", label).wait();
}

namespace {

class FakeGroup final : public Group {
 public:
  FakeGroup(std::string name, int rank, int size, int stride, FakeListener listener)
      : Group(std::move(name), rank, size), stride_(stride), listener_(std::move(listener)) {}

 protected:
  Work do_all_gather(at::Tensor output, at::Tensor input, const std::string&) override {
    if (listener_) {
      const auto own = static_cast<std::ptrdiff_t>(input.nbytes()) * rank();
      const bool in_place = static_cast<const char*>(output.const_data_ptr()) + own ==
                            static_cast<const char*>(input.const_data_ptr());
      return tell(FakeCollective::Kind::all_gather, output, in_place);
    }
    at::Tensor slices = output.view({size(), input.numel()});
    const at::Tensor own = input.view({input.numel()});
    for (int peer = 0; peer < size(); ++peer)
      if (slices[peer].const_data_ptr() != own.const_data_ptr()) slices[peer].copy_(own);
    return {};
  }
  Work do_reduce_scatter(at::Tensor output, at::Tensor input, Reduce reduce,
                         const std::string&) override {
    if (listener_) return tell(FakeCollective::Kind::reduce_scatter, input);
    output.view({-1}).copy_(input.view({size(), output.numel()})[rank()]);
    if (reduce == Reduce::sum) output.mul_(size());
    return {};
  }
  Work do_all_reduce(at::Tensor tensor, Reduce reduce, const std::string&) override {
    if (listener_) return tell(FakeCollective::Kind::all_reduce, tensor);
    if (reduce == Reduce::sum) tensor.mul_(size());
    return {};
  }
  Work do_broadcast(at::Tensor tensor, int, const std::string&) override {
    return listener_ ? tell(FakeCollective::Kind::broadcast, tensor) : Work();
  }

 private:
  Work tell(FakeCollective::Kind kind, const at::Tensor& whole, bool in_place = false) const {
    return listener_({kind, static_cast<std::int64_t>(whole.nbytes()), size(), stride_, in_place});
  }

  int stride_;
  FakeListener listener_;
};

}  // namespace

GroupPtr make_fake_group(std::string name, int rank, int size, int stride, FakeListener listener) {
  return std::make_shared<FakeGroup>(std::move(name), rank, size, stride, std::move(listener));
}

}  // namespace floe::comm
