#include "floe/comm/nccl_group.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#ifdef FLOE_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <utility>

#include "floe/core/error.h"

namespace floe::comm {

#ifdef FLOE_CUDA
namespace {

class NcclGroup final : public Group {
 public:
  NcclGroup(std::string name, int rank, int size, c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl,
            c10::Device device)
      : Group(std::move(name), rank, size), nccl_(std::move(nccl)), device_(device) {}

  void abort() override { nccl_->abort(); }

 protected:
  Work do_all_gather(at::Tensor output, at::Tensor input, const std::string& label) override {
    return issue("all-gather", label, [&] { return nccl_->_allgather_base(output, input); });
  }
  Work do_reduce_scatter(at::Tensor output, at::Tensor input, Reduce reduce,
                         const std::string& label) override {
    c10d::ReduceScatterOptions options;
    options.reduceOp = operation(reduce);
    return issue("reduce-scatter", label,
                 [&] { return nccl_->_reduce_scatter_base(output, input, options); });
  }
  Work do_all_reduce(at::Tensor tensor, Reduce reduce, const std::string& label) override {
    if (tensor.is_cpu()) tensor = tensor.to(device_);  // barriers carry a CPU token
    c10d::AllreduceOptions options;
    options.reduceOp = operation(reduce);
    std::vector<at::Tensor> tensors{tensor};
    return issue("all-reduce", label, [&] { return nccl_->allreduce(tensors, options); });
  }
  Work do_broadcast(at::Tensor tensor, int root, const std::string& label) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    return issue("broadcast", label, [&] { return nccl_->broadcast(tensors, options); });
  }

 private:
  static c10d::ReduceOp operation(Reduce reduce) {
    return reduce == Reduce::average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  }

  template <class F>
  Work issue(const char* kind, const std::string& label, F&& start) {
    const std::string what = describe(kind, label);
    try {
      auto inner = start();
      return Work([inner, what] {
        try {
          inner->wait();
        } catch (const std::exception& e) {
          throw CommError(str(what, " failed: ", e.what()));
        }
      });
    } catch (const std::exception& e) {
      throw CommError(str(what, " could not start: ", e.what()));
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  c10::Device device_;
};

}  // namespace

bool has_nccl() { return true; }

GroupPtr make_nccl_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         int size, std::chrono::milliseconds timeout, c10::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  nccl->setBoundDeviceId(device);
  return std::make_shared<NcclGroup>(std::move(name), rank, size, std::move(nccl), device);
}

#else

bool has_nccl() { return false; }

GroupPtr make_nccl_group(std::string, const c10::intrusive_ptr<c10d::Store>&, int, int,
                         std::chrono::milliseconds, c10::Device) {
  throw ConfigError("this build has no NCCL; build with FLOE_CUDA=1 ./run build");
}

#endif

}  // namespace floe::comm
