#include <ATen/ops/empty.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "floe/comm/backends.h"
#include "floe/comm/ordered_sum.h"
#include "floe/comm/watch.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"

namespace floe::comm {
namespace {

// One thread that runs jobs in the order they were given: the CPU's communication stream.
class Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  // Runs what is queued, then ends the thread.
  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The future carries what the job threw. When it is ready the job, and what it held, is gone.
  std::future<void> post(std::function<void()> job) {
    Task task{std::move(job), {}};
    auto result = task.done.get_future();
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(task));
    }
    changed_.notify_one();
    return result;
  }

 private:
  struct Task {
    std::function<void()> job;
    std::promise<void> done;
  };

  void loop() {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        task = std::move(jobs_.front());
        jobs_.pop_front();
      }
      std::exception_ptr failure;
      try {
        task.job();
      } catch (...) {
        failure = std::current_exception();
      }
      task.job = nullptr;
      if (failure)
        task.done.set_exception(failure);
      else
        task.done.set_value();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

using C10dWork = c10::intrusive_ptr<c10d::Work>;
using Clock = std::chrono::steady_clock;

// A send or receive under way. Who drops the last reference frees its tensor, whoever watches it (a
// weak intrusive pointer would keep that).
struct Transfer {
  C10dWork work;
  int peer = 0;
  Clock::time_point begin = Clock::now();
};
using Part = std::shared_ptr<Transfer>;

// Note [Sends to a rank that is gone]
// Gloo wakes what waits on a connection that breaks, except for a send whose data was already being
// written (its queue of writes is passed over): such a send would wait until the timeout. So a
// transfer that takes long has its connection tried: on a broken one Gloo refuses to begin a
// receive. The receive that is begun on one that works has a tag of its own and never ends.
constexpr std::chrono::seconds kTryAfter{1};
constexpr std::uint32_t kTryTag = 0x7fff;  // no transfer has it, see take_tags

// A sum receives in so many chunks of this size at once: one is added while others arrive.
constexpr std::int64_t kChunkBytes = 512 * kKiB;
constexpr std::int64_t kWindows = 4;
// Below this an all-reduce sends everything to everybody: one trip instead of two.
constexpr std::int64_t kSmallBytes = 32 * kKiB;

// Note [Tags]
// A tag matches a send with its receive. Its lower half counts; its upper half is made of the size
// of what a rank sends to another, so that ranks which go different ways never get data that does
// not fit (Gloo ends the process on more than was asked for, and takes less without a word): they
// wait, and time out. Where the sizes fit, the ranks go on until they compare what they did.
struct Tags {
  std::uint32_t first = 0, sort = 0;
  int operator[](std::int64_t i) const {
    return static_cast<int>(sort << 16 | ((first + static_cast<std::uint32_t>(i)) & 0xffff));
  }
};

struct Slice {
  std::int64_t offset = 0, numel = 0;
};

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

class GlooGroup final : public Group {
 public:
  GlooGroup(std::string name, int rank, std::vector<std::string> names,
            c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, std::chrono::milliseconds timeout)
      : Group(std::move(name), rank, static_cast<int>(names.size())),
        gloo_(std::move(gloo)),
        timeout_(timeout),
        names_(std::move(names)) {}
  // What is still queued waits for ranks that may never answer: it fails instead.
  ~GlooGroup() override { GlooGroup::abort("the group ends"); }

  using Group::abort;
  void abort(const std::string& why) override {
    std::lock_guard lock(issue_);
    give_up(why);
  }

 protected:
  Work do_all_gather(at::Tensor output, at::Tensor input, const std::string& label) override {
    if (!output.is_cpu()) {
      return wrap("all-gather", label, gloo_->_allgather_base(output, input));
    }
    const std::int64_t numel = input.numel();
    const at::Tensor flat = output.view({-1});
    const at::Tensor own = flat.narrow(0, rank() * numel, numel);
    if (own.const_data_ptr() != input.const_data_ptr() && numel > 0)
      std::memcpy(own.mutable_data_ptr(), input.const_data_ptr(), input.nbytes());
    const int tag = take_tags(bytes_of(input))[0];
    std::vector<Part> parts;
    guarded("all-gather", label, [&] {
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + size() - step) % size();
        parts.push_back(receive(flat.narrow(0, from * numel, numel), from, tag));
      }
      for (int step = 1; step < size(); ++step)
        parts.push_back(send(own, (rank() + step) % size(), tag));
    });
    return Work([this, label, parts = std::move(parts)] {
      guarded("all-gather", label, [&] {
        for (const auto& part : parts) finish(part);
      });
    });
  }

  Work do_reduce_scatter(at::Tensor output, at::Tensor input, Reduce reduce,
                         const std::string& label) override {
    if (!output.is_cpu()) {
      c10d::ReduceScatterOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      auto inner = gloo_->_reduce_scatter_base(output, input, options);
      return then_divide("reduce-scatter", label, std::move(inner), output, reduce);
    }
    const std::int64_t numel = output.numel();
    std::vector<Slice> slices(static_cast<std::size_t>(size()));
    for (int p = 0; p < size(); ++p) slices[static_cast<std::size_t>(p)] = {p * numel, numel};
    const Tags tags = take_tags(bytes_of(output), num_chunks(numel, input));
    return on_worker("reduce-scatter", label, [this, output, input, reduce, slices, tags] {
      sum_slices(input.view({-1}), slices, output.view({-1}), divisor(reduce), tags);
    });
  }

  Work do_all_reduce(at::Tensor tensor, Reduce reduce, const std::string& label) override {
    if (!tensor.is_cpu()) {
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      std::vector<at::Tensor> tensors{tensor};
      auto inner = gloo_->allreduce(tensors, options);
      return then_divide("all-reduce", label, std::move(inner), tensor, reduce);
    }
    const at::Tensor flat = tensor.view({-1});
    if (bytes_of(flat) <= kSmallBytes) {
      const int tag = take_tags(bytes_of(flat))[0];
      return on_worker("all-reduce", label,
                       [this, flat, reduce, tag] { sum_everything(flat, divisor(reduce), tag); });
    }
    const std::int64_t share = ceil_div(flat.numel(), size());
    std::vector<Slice> slices;
    for (int p = 0; p < size(); ++p) {
      const std::int64_t begin = std::min(p * share, flat.numel());
      slices.push_back({begin, std::min(begin + share, flat.numel()) - begin});
    }
    const int chunks = num_chunks(share, flat);
    const Tags tags = take_tags(share * flat.element_size(), 2 * chunks);
    return on_worker("all-reduce", label, [this, flat, reduce, slices, chunks, tags] {
      // A chunk of the sum can come only from a rank that has what this one still has in its place.
      std::vector<Part> works;
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + size() - step) % size();
        for_chunks(flat, slices[static_cast<std::size_t>(from)],
                   [&](std::int64_t c, const at::Tensor& sum) {
                     works.push_back(receive(sum, from, tags[chunks + c]));
                   });
      }
      const Slice own = slices[static_cast<std::size_t>(rank())];
      sum_slices(flat, slices, flat.narrow(0, own.offset, own.numel), divisor(reduce), tags,
                 [&](std::int64_t c, const at::Tensor& sum) {
                   for (int step = 1; step < size(); ++step)
                     works.push_back(send(sum, (rank() + step) % size(), tags[chunks + c]));
                 });
      for (const auto& work : works) finish(work);
    });
  }

  Work do_broadcast(at::Tensor tensor, int root, const std::string& label) override {
    if (!tensor.is_cpu()) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      std::vector<at::Tensor> tensors{tensor};
      return wrap("broadcast", label, gloo_->broadcast(tensors, options));
    }
    const at::Tensor flat = tensor.view({-1});
    const int tag = take_tags(bytes_of(flat))[0];
    return on_worker("broadcast", label, [this, flat, root, tag] { pass_on(flat, root, tag); });
  }

 private:
  // Runs f and gives what it throws a place and a cause.
  template <class F>
  void guarded(const char* kind, const std::string& label, F&& f) const {
    try {
      f();
    } catch (const std::exception& e) {
      throw CommError(str(describe(kind, label), " failed: ", cause_of(e)));
    }
  }

  Work wrap(const char* kind, const std::string& label, C10dWork inner) {
    return Work(
        [this, kind, label, inner] { guarded(kind, label, [&] { inner->wait(timeout_); }); });
  }

  Work then_divide(const char* kind, const std::string& label, C10dWork inner,
                   const at::Tensor& output, Reduce reduce) {
    return Work([this, kind, label, inner, output, reduce] {
      guarded(kind, label, [&] { inner->wait(timeout_); });
      if (reduce == Reduce::average) output.div_(size());
    });
  }

  Work on_worker(const char* kind, const std::string& label, std::function<void()> job) {
    auto done = std::make_shared<std::future<void>>(worker_.post(std::move(job)));
    return Work(
        [this, kind, label, done] { guarded(kind, label, [&] { done->get(); }); },
        [done] { return done->wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  }

  int divisor(Reduce reduce) const { return reduce == Reduce::average ? size() : 1; }

  static std::int64_t chunk_numel(const at::Tensor& tensor) {
    return kChunkBytes / static_cast<std::int64_t>(tensor.element_size());
  }
  static int num_chunks(std::int64_t numel, const at::Tensor& tensor) {
    return static_cast<int>(std::max<std::int64_t>(1, ceil_div(numel, chunk_numel(tensor))));
  }

  // f(c, its elements) for each chunk c of the slice.
  template <class F>
  static void for_chunks(const at::Tensor& flat, Slice slice, F&& f) {
    const std::int64_t chunk = chunk_numel(flat);
    for (std::int64_t at = 0, c = 0; at < slice.numel; at += chunk, ++c)
      f(c, flat.narrow(0, slice.offset + at, std::min(chunk, slice.numel - at)));
  }

  // Every rank takes tags in the same order.
  Tags take_tags(std::int64_t bytes, int count = 1) {
    return {next_tag_.fetch_add(static_cast<std::uint32_t>(count)),
            static_cast<std::uint32_t>(mix64(static_cast<std::uint64_t>(bytes)) % kTryTag)};
  }

  Part send(const at::Tensor& tensor, int to, int tag) {
    std::vector<at::Tensor> tensors{tensor};
    std::lock_guard lock(issue_);
    return tracked(to, [&] { return gloo_->send(tensors, to, tag); });
  }
  Part receive(const at::Tensor& tensor, int from, int tag) {
    std::vector<at::Tensor> tensors{tensor};
    std::lock_guard lock(issue_);
    return tracked(from, [&] { return gloo_->recv(tensors, from, tag); });
  }

  // Issues a send or receive that `abort` can reach; the lock is held.
  template <class F>
  Part tracked(int peer, F&& issue) {
    require(given_up_.empty(), given_up_);
    const auto part = std::make_shared<Transfer>(Transfer{issue(), peer});
    if (under_way_.size() >= 256)
      std::erase_if(under_way_, [](const auto& other) { return other.expired(); });
    under_way_.emplace_back(part);
    return part;
  }
  void finish(const Part& part) {
    try {
      if (part->work->wait(timeout_)) return;
    } catch (const std::exception& e) {
      throw Error(str("nothing came from or went to ", name_of(part->peer), ": ", cause_of(e)));
    }
    std::lock_guard lock(issue_);
    throw Error(given_up_);
  }
  // What is under way fails, and what comes later; the first reason counts. The lock is held.
  void give_up(const std::string& reason) {
    if (given_up_.empty()) given_up_ = reason;
    for (const auto& part : under_way_)
      if (const Part alive = part.lock()) alive->work->abort();
  }

  // See Note [Sends to a rank that is gone]. Returns true when there is nothing left to try.
  bool try_slow_connections() {
    std::lock_guard lock(issue_);
    if (!given_up_.empty()) return true;
    std::set<int> tried;
    for (const auto& watched : under_way_) {
      const Part part = watched.lock();
      if (!part || Clock::now() - part->begin < kTryAfter) continue;
      if (!tried.insert(part->peer).second || is_connected(part->peer)) continue;
      give_up(str("the connection to ", name_of(part->peer), " is lost"));
      return true;
    }
    return false;
  }
  bool is_connected(int peer) {
    try {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      gloo_->recv(nothing, peer, Tags{0, kTryTag}[0]);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  // `output` becomes the sum over ranks of slice `rank()` of `input`, see Note [Ordered sums]; each
  // chunk of it is told as soon as it is there.
  void sum_slices(const at::Tensor& input, const std::vector<Slice>& slices,
                  const at::Tensor& output, int divide, const Tags& tags,
                  const std::function<void(std::int64_t, const at::Tensor&)>& on_chunk = nullptr) {
    const std::int64_t chunk = chunk_numel(input);
    std::vector<Part> sends;
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      for_chunks(input, slices[static_cast<std::size_t>(to)],
                 [&](std::int64_t c, const at::Tensor& part) {
                   sends.push_back(send(part, to, tags[c]));
                 });
    }

    const Slice own = slices[static_cast<std::size_t>(rank())];
    const std::int64_t window_numel = std::min(chunk, std::max<std::int64_t>(own.numel, 1));
    // A row per peer: those after this rank move up by one.
    const auto row = [this](int from) { return from < rank() ? from : from - 1; };
    const std::int64_t chunks = ceil_div(own.numel, chunk);
    const std::int64_t ahead = std::min(kWindows, chunks);
    at::Tensor windows = at::empty({ahead, size() - 1, window_numel}, input.options());
    std::array<std::vector<Part>, kWindows> arriving;
    auto post = [&](std::int64_t c) {
      const std::int64_t numel = std::min(chunk, own.numel - c * chunk);
      auto& works = arriving[static_cast<std::size_t>(c % kWindows)];
      works.assign(static_cast<std::size_t>(size()), {});
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + size() - step) % size();
        works[static_cast<std::size_t>(from)] =
            receive(windows[c % kWindows][row(from)].narrow(0, 0, numel), from, tags[c]);
      }
    };
    OrderedSum sum(input.scalar_type(), window_numel);
    for (std::int64_t c = 0; c < ahead; ++c) post(c);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t numel = std::min(chunk, own.numel - c * chunk);
      sum.begin(numel);
      for (int from = 0; from < size(); ++from) {
        if (from == rank()) {
          sum.add(input.narrow(0, own.offset + c * chunk, numel).const_data_ptr());
        } else {
          finish(arriving[static_cast<std::size_t>(c % kWindows)][static_cast<std::size_t>(from)]);
          sum.add(windows[c % kWindows][row(from)].const_data_ptr());
        }
      }
      const at::Tensor result = output.narrow(0, c * chunk, numel);
      sum.finish(result.mutable_data_ptr(), divide);
      if (on_chunk) on_chunk(c, result);
      if (c + ahead < chunks) post(c + ahead);
    }
    for (const auto& work : sends) finish(work);
  }

  // A binomial tree: who has it sends it to the rank that is furthest and has none, then to nearer
  // ones.
  void pass_on(const at::Tensor& flat, int root, int tag) {
    if (flat.numel() == 0) return;
    const int place = (rank() - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    int reach = 1;  // how many ranks this one serves, itself included
    while (reach < size() && place % (2 * reach) == 0) reach *= 2;
    if (place != 0) finish(receive(flat, rank_at(place - reach), tag));
    std::vector<Part> sends;
    for (int step = reach / 2; step >= 1; step /= 2)
      if (place + step < size()) sends.push_back(send(flat, rank_at(place + step), tag));
    for (const auto& part : sends) finish(part);
  }

  void sum_everything(const at::Tensor& flat, int divide, int tag) {
    if (flat.numel() == 0) return;
    at::Tensor others = at::empty({size(), flat.numel()}, flat.options());
    std::vector<Part> works;
    for (int p = 0; p < size(); ++p)
      if (p != rank()) works.push_back(receive(others[p], p, tag));
    for (int p = 0; p < size(); ++p)
      if (p != rank()) works.push_back(send(flat, p, tag));
    for (const auto& work : works) finish(work);
    OrderedSum sum(flat.scalar_type(), flat.numel());
    sum.begin(flat.numel());
    for (int p = 0; p < size(); ++p)
      sum.add(p == rank() ? flat.const_data_ptr() : others[p].const_data_ptr());
    sum.finish(flat.mutable_data_ptr(), divide);
  }

  const std::string& name_of(int peer) const { return names_[static_cast<std::size_t>(peer)]; }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::chrono::milliseconds timeout_;
  const std::vector<std::string> names_;
  std::mutex issue_;      // Gloo's group is called from the caller's thread and from the worker
  std::string given_up_;  // why; empty while the group can be used
  std::vector<std::weak_ptr<Transfer>> under_way_;
  std::atomic<std::uint32_t> next_tag_{0};
  // Last members: their threads end before what they use.
  Worker worker_;
  Watch slow_connections_{kTryAfter, [this] { return try_slow_connections(); }};
};

// A handler that the program set itself stays.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

std::shared_ptr<::gloo::transport::Device> device_at(const NetworkPlace& place) {
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string interface = variable && *variable ? variable : place.interface;
  try {
    return interface.empty() ? c10d::ProcessGroupGloo::createDeviceForHostname(place.address)
                             : c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  } catch (const std::exception& e) {
    throw CommError(str("no connections between ranks can be made from ",
                        interface.empty() ? str("the address ", place.address)
                                          : str("the network device '", interface, "'"),
                        " of this host: ", cause_of(e),
                        "; set dist.interface to the name of one that reaches the other hosts"));
  }
}

}  // namespace

std::int64_t gloo_working_bytes(const FakeCollective& collective) {
  using Kind = FakeCollective::Kind;
  const std::int64_t size = collective.size, bytes = collective.bytes;
  if (size < 2 || collective.kind == Kind::all_gather || collective.kind == Kind::broadcast)
    return 0;
  if (collective.kind == Kind::all_reduce && bytes <= kSmallBytes) return size * bytes;
  const std::int64_t share = ceil_div(bytes, size);
  return (size - 1) * std::min(kWindows, ceil_div(share, kChunkBytes)) *
         std::min(kChunkBytes, share);  // see sum_slices
}

GroupPtr make_gloo_group(std::string name, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                         std::vector<std::string> names, std::chrono::milliseconds timeout,
                         const NetworkPlace& place) {
  const int size = static_cast<int>(names.size());
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(device_at(place));
  options->threads = 2;
  // Gloo writes to sockets whose other end may be gone; that is an error to report, not a signal.
  ignore_broken_pipes();
  try {
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    return std::make_shared<GlooGroup>(std::move(name), rank, std::move(names), std::move(gloo),
                                       timeout);
  } catch (const std::exception& e) {
    throw CommError(str("rank ", rank, " of ", size, " could not join the Gloo group '", name,
                        "': ", cause_of(e)));
  }
}

}  // namespace floe::comm
