#include <torch/csrc/distributed/c10d/Store.hpp>

#include "floe/comm/backends.h"

#ifdef FLOE_CUDA
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "floe/core/log.h"
#endif

#include "floe/comm/group.h"
#include "floe/core/error.h"

namespace floe::comm {

#ifdef FLOE_CUDA
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How long a rank that is done waits for the others before it takes its communicators down.
constexpr std::chrono::milliseconds kLeaveWait{2000};

std::vector<std::string> keys_of(const char* word, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(str(word, "/", rank));
  return keys;
}

std::string missing_ranks(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::size_t> missing;
  for (std::size_t rank = 0; rank < keys.size(); ++rank)
    if (!store.check({keys[rank]})) missing.push_back(rank);
  return missing.empty()
             ? "a rank came too late"
             : str("no sign of ", missing.size() == 1 ? "rank " : "ranks ", join(missing));
}

// Starting a communicator waits for all its ranks and has no timeout: they meet at the store
// before.
void meet(c10d::Store& store, const std::string& name, int rank, int size,
          std::chrono::milliseconds timeout) {
  const auto keys = keys_of("here", size);
  std::string why;
  try {
    store.set(keys[rank], std::vector<std::uint8_t>{1});
    try {
      store.wait(keys, timeout);
      return;
    } catch (const std::exception&) {
      why = str(missing_ranks(store, keys), "; the timeout is ", timeout.count() / 1000, " s");
      store.deleteKey(keys[rank]);  // those who come later must not count on this rank
    }
  } catch (const std::exception&) {
    why = "the store of rank 0 is gone";
  }
  throw CommError(
      str("rank ", rank, " of ", size, " could not join the NCCL group '", name, "': ", why));
}

class NcclGroup final : public Group {
 public:
  NcclGroup(std::string name, int rank, int size, c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl,
            StorePtr store, c10::Device device)
      : Group(std::move(name), rank, size),
        nccl_(std::move(nccl)),
        store_(std::move(store)),
        device_(device) {}
  // What others still need of this rank may be under way, so ranks leave together. Where one has
  // failed or does not come, nobody waits: torch's shutdown would, without end.
  ~NcclGroup() override {
    try {
      if (!aborted_ && nccl_->getError() == c10d::ErrorType::SUCCESS) {
        const auto keys = keys_of("done", size());
        store_->set(keys[rank()], std::vector<std::uint8_t>{1});
        store_->wait(keys, kLeaveWait);
      }
    } catch (const std::exception& e) {
      log::debug("the NCCL group ", name(), " is left by rank ", rank(), " alone: ", cause_of(e));
    }
    end_communicators();
  }

  // What NCCL had to say before goes with its communicators, so it is kept: the watch may give the
  // group up before the host has looked.
  using Group::abort;
  void abort(const std::string& why) override {
    if (ending_.exchange(true)) return;
    ended_because_ = failure();
    if (ended_because_.empty())
      ended_because_ = str("the NCCL group ", name(), " was given up on rank ", rank(), ": ", why);
    aborted_ = true;
    end_communicators();
  }
  void check() const override {
    const std::string problem = aborted_ ? ended_because_ : failure();
    require<CommError>(problem.empty(), problem);
  }

  // Waiting for a collective only makes the stream wait; here the host has to.
  void barrier(const std::string& label) override {
    const at::Tensor token = at::zeros({1}, at::device(device_));
    named(do_all_reduce(token, Reduce::sum, label), "barrier", label).wait();
    token.cpu();
    check();
  }

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

  // What NCCL reports, as a sentence; empty: nothing.
  std::string failure() const {
    const char* what = nullptr;
    switch (nccl_->getError()) {
      case c10d::ErrorType::SUCCESS: return "";
      case c10d::ErrorType::TIMEOUT:
        what = "a collective has timed out; a rank is stuck, or dist.timeout_s is too short";
        break;
      case c10d::ErrorType::REMOTE_ERROR: what = "another rank has failed"; break;
      default: what = "NCCL reports an error; NCCL_DEBUG=WARN shows more"; break;
    }
    return str("the NCCL group ", name(), " failed on rank ", rank(), " of ", size(), ": ", what);
  }

  void end_communicators() noexcept {
    try {
      nccl_->abort();
    } catch (const std::exception& e) {
      log::debug("the NCCL group ", name(), " did not end well: ", cause_of(e));
    }
  }

  template <class F>
  Work issue(const char* kind, const std::string& label, F&& start) {
    check();
    const std::string what = describe(kind, label);
    try {
      auto inner = start();
      return Work([inner, what] {
        try {
          inner->wait();
        } catch (const std::exception& e) {
          throw CommError(str(what, " failed: ", cause_of(e)));
        }
      });
    } catch (const std::exception& e) {
      throw CommError(str(what, " could not start: ", cause_of(e)));
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  StorePtr store_;
  c10::Device device_;
  std::atomic<bool> ending_{false};
  std::string ended_because_;         // written once, before aborted_
  std::atomic<bool> aborted_{false};  // the communicators are ended or about to be
};

// A collective that fails or times out ends its communicators at once, so that the device goes on
// and the host can say what happened (Group::check). Torch's own choice is to leave a minute for a
// dump (four times this wait), whether or not one is made, and then to end the process. What the
// user has set stays; what torchrun sets of its own accord does not.
void end_communicators_not_processes() {
  const char* handling = std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  const bool by_torchrun = std::getenv("TORCHELASTIC_RUN_ID") && handling && *handling == '1';
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/by_torchrun);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", /*overwrite=*/0);
}

}  // namespace

bool has_nccl() { return true; }

GroupPtr make_nccl_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         int size, std::chrono::milliseconds timeout, c10::Device device) {
  meet(*store, name, rank, size, timeout);
  end_communicators_not_processes();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  nccl->setBoundDeviceId(device);
  auto group =
      std::make_shared<NcclGroup>(std::move(name), rank, size, std::move(nccl), store, device);
  group->barrier("start");  // while all are known to be there
  return group;
}

#else

bool has_nccl() { return false; }

// NOLINTNEXTLINE(performance-unnecessary-value-param): as with NCCL
GroupPtr make_nccl_group(std::string, const c10::intrusive_ptr<c10d::Store>&, int, int,
                         std::chrono::milliseconds, c10::Device) {
  throw ConfigError("this build has no NCCL; build with FLOE_CUDA=1 ./run build");
}

#endif

}  // namespace floe::comm
