#include <ATen/ops/empty.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "floe/comm/backends.h"
#include "floe/comm/gloo/host_memory.h"
#include "floe/comm/gloo/transfers.h"
#include "floe/comm/gloo/worker.h"
#include "floe/comm/ordered_sum.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::comm {
namespace {

// A sum receives in so many chunks of this size at once: one is added while others arrive.
constexpr std::int64_t kChunkBytes = 512 * kKiB;
constexpr std::int64_t kWindows = 4;
// Below this an all-reduce sends everything to everybody: one trip instead of two.
constexpr std::int64_t kSmallBytes = 32 * kKiB;

struct Slice {
  std::int64_t offset = 0, numel = 0;
};

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

using C10dWork = c10::intrusive_ptr<c10d::Work>;
using Loan = HostMemory::Loan;
using Loans = HostMemory::Loans;

class GlooGroup final : public Group {
 public:
  GlooGroup(std::string name, int rank, std::vector<std::string> names,
            c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, std::chrono::milliseconds timeout)
      : Group(std::move(name), rank, static_cast<int>(names.size())),
        gloo_(gloo),
        timeout_(timeout),
        transfers_(std::move(gloo), std::move(names), timeout),
        memory_(transfers_, rank, size()) {}
  // What is still queued waits for ranks that may never answer: it fails instead.
  ~GlooGroup() override { GlooGroup::abort("the group ends"); }

  // Collective.
  void meet(const std::vector<int>& here, bool wants_memory) {
    memory_.meet(here, wants_memory);
    if (memory_.num_reached() > 0) gathers_.emplace();
    log::debug("group ", name(), ": ", memory_.num_reached(), " of ", size() - 1,
               " other ranks read this one's memory, and it theirs");
  }

  using Group::abort;
  void abort(const std::string& why) override {
    memory_.take_back();
    transfers_.give_up(why);
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
    const std::int64_t bytes = bytes_of(input);
    const Tags tags = transfers_.take_tags(bytes);
    std::vector<Part> parts;
    const auto reads = std::make_shared<Reads>(memory_);
    guarded("all-gather", label, [&] {
      for (int step = 1; step < size(); ++step) {
        const int from = before(step);
        const at::Tensor place = flat.narrow(0, from * numel, numel);
        if (memory_.reaches(from, bytes))
          reads->borrowed.push_back({Loan(memory_, Patience::none, from, tags), place});
        else
          parts.push_back(transfers_.receive(place, from, tags[0]));
      }
      for (int step = 1; step < size(); ++step) {
        const int to = behind(step);
        if (memory_.reaches(to, bytes))
          reads->lent.lend(own, to, tags);
        else
          parts.push_back(transfers_.send(own, to, tags[0]));
      }
    });
    std::shared_ptr<std::future<void>> read;
    if (!reads->borrowed.empty())
      read = std::make_shared<std::future<void>>(gathers_->post([reads] { reads->run(); }));
    return Work([this, label, parts = std::move(parts), read] {
      guarded("all-gather", label, [&] {
        try {
          for (const auto& part : parts) transfers_.finish(part);
        } catch (const std::exception& e) {
          // What goes from memory to memory beside them ends as well, before the caller has its
          // tensors back.
          if (read) end(*read, e.what());
          throw;
        }
        if (read) finish_in_time(*read);
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
    const Tags tags = transfers_.take_tags(bytes_of(output), num_chunks(numel, input));
    return on_worker("reduce-scatter", label, [this, output, input, reduce, slices, tags] {
      std::vector<Part> sends;
      Loans lent(memory_, Patience::timeout);
      sum_slices(input.view({-1}), slices, output.view({-1}), divisor(reduce), tags, sends, lent);
      for (const auto& part : sends) transfers_.finish(part);
      lent.settle();
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
      const int tag = transfers_.take_tags(bytes_of(flat))[0];
      return on_worker("all-reduce", label,
                       [this, flat, reduce, tag] { sum_everything(flat, divisor(reduce), tag); });
    }
    const std::int64_t share = ceil_div(flat.numel(), size());
    std::vector<Slice> slices;
    for (int p = 0; p < size(); ++p) {
      const std::int64_t begin = std::min(p * share, flat.numel());
      slices.push_back({begin, std::min(begin + share, flat.numel()) - begin});
    }
    const Tags tags =
        transfers_.take_tags(share * flat.element_size(), 2 * num_chunks(share, flat));
    return on_worker("all-reduce", label, [this, flat, reduce, slices, tags] {
      sum_and_gather(flat, slices, divisor(reduce), tags);
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
    const Tags tags = transfers_.take_tags(bytes_of(flat));
    return on_worker("broadcast", label, [this, flat, root, tags] { pass_on(flat, root, tags); });
  }

 private:
  // What an all-gather reads of others and they of this rank. It begins when it is issued, but the
  // time that it may take is counted from when it is waited for.
  struct Reads {
    struct Borrowed {
      Loan loan;
      at::Tensor place;
    };
    Loans lent;
    std::vector<Borrowed> borrowed;

    explicit Reads(HostMemory& memory) : lent(memory, Patience::none) {}
    void run() {
      for (Borrowed& one : borrowed) {
        one.loan.open(bytes_of(one.place));
        one.loan.read(0, one.place);
        one.loan.close();
      }
      lent.settle();
    }
  };

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

  void finish_in_time(std::future<void>& job) {
    if (job.wait_for(timeout_) != std::future_status::ready) transfers_.time_out();
    job.get();
  }

  void end(const std::future<void>& job, const std::string& why) {
    memory_.take_back();
    transfers_.give_up(why);
    job.wait();
  }

  int divisor(Reduce reduce) const { return reduce == Reduce::average ? size() : 1; }

  // The ranks around this one, so that not all begin with the same.
  int before(int step) const { return (rank() + size() - step) % size(); }
  int behind(int step) const { return (rank() + step) % size(); }

  static std::int64_t chunk_numel(const at::Tensor& tensor) {
    return kChunkBytes / static_cast<std::int64_t>(tensor.element_size());
  }
  static int num_chunks(std::int64_t numel, const at::Tensor& tensor) {
    return static_cast<int>(std::max<std::int64_t>(1, ceil_div(numel, chunk_numel(tensor))));
  }

  // The elements of the longest chunk of so many, or a place for one.
  static std::int64_t longest_chunk(const at::Tensor& tensor, std::int64_t numel) {
    return std::clamp<std::int64_t>(numel, 1, chunk_numel(tensor));
  }

  // f(c, its elements) for each chunk c of the slice.
  template <class F>
  static void for_chunks(const at::Tensor& flat, Slice slice, F&& f) {
    const std::int64_t chunk = chunk_numel(flat);
    for (std::int64_t at = 0, c = 0; at < slice.numel; at += chunk, ++c)
      f(c, flat.narrow(0, slice.offset + at, std::min(chunk, slice.numel - at)));
  }
  static at::Tensor slice_of(const at::Tensor& flat, Slice slice) {
    return flat.narrow(0, slice.offset, slice.numel);
  }
  // Whether slices, the first of which is the longest, go from memory to memory.
  bool reaches(int peer, const at::Tensor& flat, const std::vector<Slice>& slices) const {
    return memory_.reaches(peer, slices.front().numel * flat.element_size());
  }

  // What the other ranks bring for this rank's slice, chunk by chunk: it is received into windows
  // ahead of its turn, or read out of their memory.
  class Incoming {
   public:
    // Waits for what is lent.
    Incoming(GlooGroup& group, const at::Tensor& input, const std::vector<Slice>& slices,
             const Tags& tags)
        : group_(group),
          tags_(tags),
          numel_(slices[static_cast<std::size_t>(group.rank())].numel),
          chunk_(chunk_numel(input)),
          ahead_(std::min(kWindows, num_chunks())),
          windows_(
              at::empty({ahead_, group.size() - 1, longest_chunk(input, numel_)}, input.options())),
          borrowed_(static_cast<std::size_t>(group.size())) {
      for (int from = 0; from < group.size(); ++from)
        if (from != group.rank() && group.reaches(from, input, slices))
          borrowed_[static_cast<std::size_t>(from)].emplace(group.memory_, Patience::timeout, from,
                                                            tags);
      for (std::int64_t c = 0; c < ahead_; ++c) receive(c);
      for (auto& loan : borrowed_)
        if (loan) loan->open(numel_ * input.element_size());
    }

    std::int64_t num_chunks() const { return ceil_div(numel_, chunk_); }
    std::int64_t chunk_numel_of(std::int64_t c) const {
      return std::min(chunk_, numel_ - c * chunk_);
    }
    // Chunk c of that rank, until done_with(c).
    const void* chunk(std::int64_t c, int from) {
      const auto peer = static_cast<std::size_t>(from);
      if (borrowed_[peer]) {
        // Always the same window, which stays in the cache.
        const at::Tensor window = window_of(0, from, chunk_numel_of(c));
        borrowed_[peer]->read(c * kChunkBytes, window);
        return window.const_data_ptr();
      }
      group_.transfers_.finish(arriving_[static_cast<std::size_t>(c % kWindows)][peer]);
      return window_of(c, from, chunk_numel_of(c)).const_data_ptr();
    }
    void done_with(std::int64_t c) {
      if (c + ahead_ < num_chunks()) receive(c + ahead_);
    }
    // Tells those who lend that all has been read.
    void close() {
      for (auto& loan : borrowed_)
        if (loan) loan->close();
    }

   private:
    // A row per peer: those after this rank move up by one.
    at::Tensor window_of(std::int64_t c, int from, std::int64_t numel) const {
      const int row = from < group_.rank() ? from : from - 1;
      return windows_[c % kWindows][row].narrow(0, 0, numel);
    }
    void receive(std::int64_t c) {
      auto& parts = arriving_[static_cast<std::size_t>(c % kWindows)];
      parts.assign(static_cast<std::size_t>(group_.size()), {});
      for (int step = 1; step < group_.size(); ++step) {
        const int from = group_.before(step);
        if (!borrowed_[static_cast<std::size_t>(from)])
          parts[static_cast<std::size_t>(from)] =
              group_.transfers_.receive(window_of(c, from, chunk_numel_of(c)), from, tags_[c]);
      }
    }

    GlooGroup& group_;
    const Tags& tags_;
    std::int64_t numel_, chunk_, ahead_;
    at::Tensor windows_;                         // [ahead, peers, window]
    std::vector<std::optional<Loan>> borrowed_;  // by rank
    std::array<std::vector<Part>, kWindows> arriving_;
  };

  // Gives each other rank its slice of `input`; that is under way in `sends` and `lent`.
  void give_slices(const at::Tensor& input, const std::vector<Slice>& slices, const Tags& tags,
                   std::vector<Part>& sends, Loans& lent) {
    for (int step = 1; step < size(); ++step) {
      const Slice slice = slices[static_cast<std::size_t>(behind(step))];
      if (reaches(behind(step), input, slices))
        lent.lend(slice_of(input, slice), behind(step), tags);
      else
        for_chunks(input, slice, [&](std::int64_t c, const at::Tensor& part) {
          sends.push_back(transfers_.send(part, behind(step), tags[c]));
        });
    }
  }

  // `output` becomes the sum over ranks of slice `rank()` of `input`, see Note [Ordered sums]; each
  // chunk of it is told as soon as it is there. What this rank gives is under way in `sends` and
  // `lent`.
  void sum_slices(const at::Tensor& input, const std::vector<Slice>& slices,
                  const at::Tensor& output, int divide, const Tags& tags, std::vector<Part>& sends,
                  Loans& lent,
                  const std::function<void(std::int64_t, const at::Tensor&)>& on_chunk = nullptr) {
    const std::int64_t chunk = chunk_numel(input);
    const Slice own = slices[static_cast<std::size_t>(rank())];
    OrderedSum sum(input.scalar_type(), longest_chunk(input, own.numel));
    give_slices(input, slices, tags, sends, lent);
    Incoming incoming(*this, input, slices, tags);
    for (std::int64_t c = 0; c < incoming.num_chunks(); ++c) {
      const std::int64_t numel = incoming.chunk_numel_of(c);
      sum.begin(numel);
      for (int from = 0; from < size(); ++from)
        sum.add(from == rank() ? input.narrow(0, own.offset + c * chunk, numel).const_data_ptr()
                               : incoming.chunk(c, from));
      const at::Tensor result = output.narrow(0, c * chunk, numel);
      sum.finish(result.mutable_data_ptr(), divide);
      if (on_chunk) on_chunk(c, result);
      incoming.done_with(c);
    }
    incoming.close();
  }

  // Each rank sums its slice and gives the sum to the others.
  void sum_and_gather(const at::Tensor& flat, const std::vector<Slice>& slices, int divide,
                      const Tags& tags) {
    constexpr int kOfSums = 2;  // the messages
    const int chunks = num_chunks(slices.front().numel, flat);
    // A chunk of the sum can come only from a rank that has what this one still has in its place.
    std::vector<Part> works;
    Loans lent(memory_, Patience::timeout);
    for (int step = 1; step < size(); ++step)
      if (!reaches(before(step), flat, slices))
        for_chunks(flat, slices[static_cast<std::size_t>(before(step))],
                   [&](std::int64_t c, const at::Tensor& sum) {
                     works.push_back(transfers_.receive(sum, before(step), tags[chunks + c]));
                   });
    const at::Tensor own = slice_of(flat, slices[static_cast<std::size_t>(rank())]);
    sum_slices(flat, slices, own, divide, tags, works, lent,
               [&](std::int64_t c, const at::Tensor& sum) {
                 for (int step = 1; step < size(); ++step)
                   if (!reaches(behind(step), flat, slices))
                     works.push_back(transfers_.send(sum, behind(step), tags[chunks + c]));
               });
    for (int step = 1; step < size(); ++step)
      if (reaches(behind(step), flat, slices)) lent.lend(own, behind(step), tags, kOfSums);
    for (int step = 1; step < size(); ++step) {
      if (!reaches(before(step), flat, slices)) continue;
      const at::Tensor place = slice_of(flat, slices[static_cast<std::size_t>(before(step))]);
      Loan sum(memory_, Patience::timeout, before(step), tags, kOfSums);
      sum.open(bytes_of(place));
      sum.read(0, place);
      sum.close();
    }
    for (const auto& work : works) transfers_.finish(work);
    lent.settle();
  }

  // A binomial tree: who has it sends it to the rank that is furthest and has none, then to nearer
  // ones.
  void pass_on(const at::Tensor& flat, int root, const Tags& tags) {
    if (flat.numel() == 0) return;
    const int place = (rank() - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    int reach = 1;  // how many ranks this one serves, itself included
    while (reach < size() && place % (2 * reach) == 0) reach *= 2;
    if (place != 0) take(flat, rank_at(place - reach), tags);
    std::vector<Part> sends;
    Loans lent(memory_, Patience::timeout);
    for (int step = reach / 2; step >= 1; step /= 2) {
      if (place + step >= size()) continue;
      const int to = rank_at(place + step);
      if (memory_.reaches(to, bytes_of(flat)))
        lent.lend(flat, to, tags);
      else
        sends.push_back(transfers_.send(flat, to, tags[0]));
    }
    for (const auto& part : sends) transfers_.finish(part);
    lent.settle();
  }

  // All of a tensor, from a rank that sends or lends it.
  void take(const at::Tensor& flat, int from, const Tags& tags) {
    if (!memory_.reaches(from, bytes_of(flat)))
      return transfers_.finish(transfers_.receive(flat, from, tags[0]));
    Loan loan(memory_, Patience::timeout, from, tags);
    loan.open(bytes_of(flat));
    loan.read(0, flat);
    loan.close();
  }

  void sum_everything(const at::Tensor& flat, int divide, int tag) {
    if (flat.numel() == 0) return;
    at::Tensor others = at::empty({size(), flat.numel()}, flat.options());
    std::vector<Part> works;
    for (int p = 0; p < size(); ++p)
      if (p != rank()) works.push_back(transfers_.receive(others[p], p, tag));
    for (int p = 0; p < size(); ++p)
      if (p != rank()) works.push_back(transfers_.send(flat, p, tag));
    for (const auto& work : works) transfers_.finish(work);
    OrderedSum sum(flat.scalar_type(), flat.numel());
    sum.begin(flat.numel());
    for (int p = 0; p < size(); ++p)
      sum.add(p == rank() ? flat.const_data_ptr() : others[p].const_data_ptr());
    sum.finish(flat.mutable_data_ptr(), divide);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::chrono::milliseconds timeout_;
  Transfers transfers_;
  HostMemory memory_;
  // Last members: their threads end before what they use. Gathers have one of their own, so that
  // those which are issued ahead do not wait behind sums; where nothing is read there is none.
  Worker worker_;
  std::optional<Worker> gathers_;
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
                         std::vector<std::string> names, const std::vector<int>& here,
                         std::chrono::milliseconds timeout, const NetworkPlace& place) {
  const int size = static_cast<int>(names.size());
  const bool wants_memory = wants_memory_of_host();
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(device_at(place));
  options->threads = 2;
  // Gloo writes to sockets whose other end may be gone; that is an error to report, not a signal.
  ignore_broken_pipes();
  try {
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    const auto group =
        std::make_shared<GlooGroup>(name, rank, std::move(names), std::move(gloo), timeout);
    group->meet(here, wants_memory);
    return group;
  } catch (const std::exception& e) {
    throw CommError(str("rank ", rank, " of ", size, " could not join the Gloo group '", name,
                        "': ", cause_of(e)));
  }
}

}  // namespace floe::comm
