// A group of ranks that issue the same collectives in the same order.
//
// Note [Collectives]
// Every function marked `Collective:` must be called by all ranks of the group, in the same order
// and with tensors of the same size. It returns at once; the tensors belong to the collective until
// `Work::wait` has returned. On the CPU `wait` blocks the caller. On CUDA it makes the *current
// stream* wait, and the collective itself begins after the work that is already on the stream that
// is current when it is issued.
// A failure (a peer that died, a timeout) is a CommError from `wait`; the group is unusable then.
// The label says what the collective is for ("gather layers.3 frozen"); it appears in every error.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace floe::comm {

// What torch says of a failure, as one line without its stack.
inline std::string cause_of(const std::exception& e) {
  std::string text = e.what();
  text.resize(std::min(text.size(), text.find("\nException raised from")));
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

enum class Reduce { sum, average };
enum class WaitFor : int;  // see Activity

// A collective under way. Copies refer to the same one; an empty Work is done.
class Work {
 public:
  Work() = default;
  // `done` tells without waiting whether it has ended; where it is missing, nobody knows.
  explicit Work(std::function<void()> wait, std::function<bool()> done = nullptr);

  // Blocks (CPU) or makes the current stream wait (CUDA). Later calls return at once.
  // Throws CommError when the collective failed.
  void wait();
  bool pending() const { return state_ != nullptr; }
  // What is waited for, in words: another rank may ask (see Activity).
  void set_name(std::string name, WaitFor kind);
  // True when `wait` would return (or throw) at once; false when it would block or nobody knows.
  bool done() const;

 private:
  struct State {
    std::function<void()> wait;
    std::function<bool()> done;
    std::string name;
    WaitFor kind{};
  };
  std::shared_ptr<State> state_;
};

// How often each collective was issued by this rank, and how many bytes of result or input it had:
// all_gather and broadcast count the gathered output, reduce_scatter and all_reduce the input.
struct Traffic {
  std::int64_t all_gathers = 0, all_gather_bytes = 0;
  std::int64_t reduce_scatters = 0, reduce_scatter_bytes = 0;
  std::int64_t all_reduces = 0, all_reduce_bytes = 0;
  std::int64_t broadcasts = 0, broadcast_bytes = 0;
};

class Group {
 public:
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  const Traffic& traffic() const { return traffic_; }

  // Collective: `output` [size * n] receives every rank's `input` [n], in rank order. `input` may
  // be this rank's slice of `output`. Both contiguous, same dtype.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, const std::string& label);

  // Collective: `output` [n] receives slice `rank()` of the sum (or mean) over ranks of `input`
  // [size * n]. On the CPU the sum runs in rank order, so that it is the same on every run.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, Reduce reduce,
                      const std::string& label);

  // Collective: the sum (or mean) over ranks, in place, the same bits on every rank.
  Work all_reduce(const at::Tensor& tensor, Reduce reduce, const std::string& label);

  // Collective: every rank gets what `root` has.
  Work broadcast(const at::Tensor& tensor, int root, const std::string& label);

  // Collective: returns when every rank has called it.
  virtual void barrier(const std::string& label);

  // Makes pending and later collectives fail on this rank, with this reason; the first one stays.
  // May be called from any thread.
  virtual void abort(const std::string& /*why*/) {}
  void abort() { abort("this rank has given the group up"); }
  // Throws CommError when a collective has failed behind the host's back: over NCCL `wait` returns
  // before the device is done. World::read calls it.
  virtual void check() const {}

 protected:
  Group(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

  virtual Work do_all_gather(at::Tensor output, at::Tensor input, const std::string& label) = 0;
  virtual Work do_reduce_scatter(at::Tensor output, at::Tensor input, Reduce reduce,
                                 const std::string& label) = 0;
  virtual Work do_all_reduce(at::Tensor tensor, Reduce reduce, const std::string& label) = 0;
  virtual Work do_broadcast(at::Tensor tensor, int root, const std::string& label) = 0;

  // What was issued, for whoever asks what this rank is doing.
  Work named(Work work, const char* kind, const std::string& label, WaitFor waits = {}) const;
  // "all-gather 'gather layers.3' on rank 1 of 4"
  std::string describe(const char* kind, const std::string& label) const;

 private:
  std::string name_;
  int rank_;
  int size_;
  Traffic traffic_;
};

using GroupPtr = std::shared_ptr<Group>;

// What a fake group (see make_fake_group) was asked to do.
struct FakeCollective {
  enum class Kind { all_gather, reduce_scatter, all_reduce, broadcast };
  Kind kind = Kind::all_gather;
  std::int64_t bytes = 0;  // of the whole tensor, as Traffic counts them
  int size = 1;            // ranks of the group
  int stride = 1;          // from one of them to the next, in the order of the ranks
  bool in_place = false;   // what this rank gives already lies where the others' will
};
// Told of each, when it is issued; the caller gets the work that it returns.
using FakeListener = std::function<Work(const FakeCollective&)>;

// Bytes of tensors that a Gloo group on the CPU allocates while it runs such a collective.
std::int64_t gloo_working_bytes(const FakeCollective& collective);

}  // namespace floe::comm
