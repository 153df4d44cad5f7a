// What grows with the number of ranks, with the real parts: the control plane over TCP, the store,
// the agreement, the exchange of a save, the writer and the reader of checkpoints. Ranks are
// threads of this process, each with its own connection, engine and slices; only the collectives
// are not there.
//
//   many_ranks FOLDER RANKS [LATER...]
//
// RANKS start, agree and save; then they, and every LATER number of ranks, resume that
// checkpoint. Prints a line of JSON for every part: requests to rank 0's store, seconds, CPU
// seconds, and, of a resume, what each rank opened and read. Ends with 1 when a rank has other
// numbers than were saved.
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <semaphore>
#include <thread>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/load.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/checkpoint/load/saved_state.h"
#include "floe/checkpoint/store_exchange.h"
#include "floe/comm/world.h"
#include "floe/control/control_plane.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/core/philox.h"
#include "floe/io/file/file.h"
#include "floe/models/transformer.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/sgd.h"
#include "floe/shard/engine.h"
#include "floe/shard/group/flat_group.h"

namespace {

using namespace floe;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using control::Clock;
using nlohmann::json;

constexpr std::chrono::milliseconds kLong = 600s;
constexpr int kExchanges = 10;
constexpr int kAtOnce = 128;  // ranks that may read the index of a checkpoint together
// AdamW's state is as many chunks again, twice. A thousand ranks on one machine save without it, or
// they would be busy with the index of the checkpoint for a quarter of an hour.
bool with_moments = true;
constexpr std::int64_t kStep = 7;
constexpr std::size_t kStateBytes = 40'000;  // of a rank's loader

double processor_s() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + double(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

control::Member member(int rank, int world_size) {
  control::Member self;
  self.rank = rank;
  self.world_size = world_size;
  self.job = "many ranks";
  self.host = str("h", rank / 8);
  self.host_id = self.host;
  self.pid = ::getpid();
  return self;
}

// As long as that of a run.
std::vector<comm::NamedText> configuration() {
  std::vector<comm::NamedText> values;
  for (int i = 0; i < 300; ++i)
    values.push_back({str("train.some_block.key_", i), str("a value of this key, number ", i)});
  return values;
}

json state_of(int rank) {
  std::string text(kStateBytes, 'x');
  const Philox random(static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>('a' + random.block(i / 4)[i % 4] % 26);
  return {{"rank", rank}, {"stream", text}};
}

// A number that says which element it is, exact in fp32.
at::Tensor numbers(const shard::FlatGroup& group, const shard::Piece& piece, std::int64_t kind) {
  const std::int64_t name =
      static_cast<std::int64_t>(hash64(group.parameter(piece.index).name) % 1000);
  const at::Tensor places =
      at::arange(piece.first, piece.first + piece.numel, at::TensorOptions(at::kLong));
  return (places * 31 + name * 7919 + kind * 104'729).remainder(16'777'213).to(at::kFloat);
}

// The numbers of one kind of state on this rank.
using Visit = std::function<void(const at::Tensor& values, const at::Tensor& expected)>;

class Rank {
 public:
  Rank(std::shared_ptr<control::ControlPlane> plane, bool filled)
      : world_(comm::World::without_collectives(std::move(plane), kLong)) {
    shard::ShardOptions options;
    options.world = world_;
    options.seed = filled ? 1 : 2;
    const models::TransformerSize size{
        .vocab = 4096, .dim = 128, .layers = 2, .heads = 2, .context = 64};
    engine_ = shard::fully_shard(std::make_shared<models::Transformer>(size), {}, options);
    if (with_moments)
      optimizer_ = std::make_unique<optim::AdamW>(*engine_, optim::AdamWOptions());
    else
      optimizer_ = std::make_unique<optim::Sgd>(*engine_, optim::SgdOptions());
    if (filled) {
      for (std::size_t g = 0; g < engine_->trainable_groups().size(); ++g)
        optimizer_->open_state(g);
      visit([](const at::Tensor& values, const at::Tensor& expected) { values.copy_(expected); });
    }
  }

  // Collective.
  void open(const std::string& folder) {
    checkpoint::CheckpointerOptions saving;
    saving.run_folder = folder;
    saving.engine = engine_.get();
    saving.optimizers = {{"", optimizer_.get()}};
    checkpoints_ = std::make_unique<checkpoint::Checkpointer>(saving);
  }

  comm::World& world() { return *world_; }
  checkpoint::Checkpointer& checkpoints() { return *checkpoints_; }

  // Collective. What Checkpointer::resume does, which more than a hundred threads cannot do at the
  // same time: what a rank knows of a checkpoint grows with the number of ranks that saved it, and
  // so does the memory that it takes to find that out.
  checkpoint::RankStates resume_in_turn(const std::string& run_folder) {
    static std::counting_semaphore<> turns(4);
    const auto in_turn = [](const std::function<void()>& work) {
      turns.acquire();
      try {
        work();
      } catch (...) {
        turns.release();
        throw;
      }
      turns.release();
    };
    checkpoint::RunState run;
    run.engine = engine_.get();
    run.optimizers = {{"", optimizer_.get()}};
    std::vector<std::string> paths, passed_over;
    if (world_->rank() == 0)
      paths = checkpoint::candidates(checkpoint::checkpoints_folder(run_folder), passed_over);
    checkpoint::StoreExchange exchange(*world_, "resume");
    std::optional<checkpoint::SavedState> opened;
    checkpoint::Loadable loadable;
    const auto validate = [&](const std::string& path) {
      in_turn([&] {
        const auto manifest = checkpoint::read_manifest(checkpoint::manifest_path(path));
        checkpoint::verify(path, manifest, world_->rank(), world_->size());
        opened = checkpoint::open_saved(path, run, {});
        loadable = checkpoint::check_fits(*opened, run);
      });
    };
    const auto choice = checkpoint::choose(paths, validate, exchange);
    require(!choice.path.empty(), "the checkpoint was not found: ", join(choice.passed_over, "; "));
    in_turn([&] { checkpoint::load(*opened, run, loadable); });
    require(exchange.first_problem("", "the load").empty(), "there is a problem");
    return opened->manifest->ranks;
  }

  // What belongs to this rank's thread alone.
  void forget() {
    checkpoints_.reset();
    optimizer_.reset();
    engine_.reset();
  }

  std::int64_t held_bytes() {
    std::int64_t bytes = 0;
    visit([&](const at::Tensor& values, const at::Tensor&) {
      bytes += static_cast<std::int64_t>(values.nbytes());
    });
    return bytes;
  }
  bool is_as_saved() {
    bool same = true;
    visit([&](const at::Tensor& values, const at::Tensor& expected) {
      same = same && at::equal(values, expected);
    });
    return same;
  }

 private:
  void visit(const Visit& work) {
    const at::AutoGradMode grad_off(false);
    const auto groups = engine_->trainable_groups();
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const shard::Piece& piece : groups[g]->pieces()) {
        std::int64_t kind = 0;
        const auto one = [&](const at::Tensor& values) {
          work(values.narrow(0, piece.slice_offset, piece.numel),
               numbers(*groups[g], piece, kind++));
        };
        one(groups[g]->values());
        for (const optim::StateSlice& slice : optimizer_->state_slices(g)) one(slice.values);
      }
  }

  std::shared_ptr<comm::World> world_;
  std::shared_ptr<shard::Engine> engine_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<checkpoint::Checkpointer> checkpoints_;
};

// All ranks of a world, each on a thread of its own.
class Ranks {
 public:
  explicit Ranks(int size) : planes_(static_cast<std::size_t>(size)), ranks_(planes_.size()) {
    UniqueFd listening = control::listen_at(0, /*loopback_only=*/true, Clock::now());
    const auto where = [port = control::port_of(listening)](std::string&) {
      return control::Address{"127.0.0.1", port};
    };
    each([&](int rank) {
      planes_[at(rank)] =
          rank == 0 ? control::ControlPlane::serve(member(0, size), std::move(listening), kLong)
                    : control::ControlPlane::join(member(rank, size), where, kLong);
    });
  }

  int size() const { return static_cast<int>(planes_.size()); }
  Rank& operator[](int rank) { return *ranks_[at(rank)]; }
  std::int64_t requests() const { return planes_.front()->num_requests(); }

  // Runs it on every rank; the first error is thrown.
  void each(const std::function<void(int rank)>& work) {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::exception_ptr failure;
    for (int rank = 0; rank < size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          work(rank);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
  }

  // Engines are made one after the other: in a run each has a process of its own.
  void open(const std::string& folder, bool filled) {
    for (int rank = 0; rank < size(); ++rank)
      ranks_[at(rank)] = std::make_unique<Rank>(planes_[at(rank)], filled);
    each([&](int rank) { ranks_[at(rank)]->open(folder); });
  }
  // What they had goes one after the other; then they leave together.
  void stop() {
    for (const auto& rank : ranks_) rank->forget();
    each([&](int rank) {
      ranks_[at(rank)].reset();
      if (rank != 0) planes_[at(rank)].reset();
    });
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  std::vector<std::shared_ptr<control::ControlPlane>> planes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// What a part cost since the last one.
class Meter {
 public:
  void part(const char* name, const Ranks& ranks, json more = json::object()) {
    more["part"] = name;
    more["ranks"] = ranks.size();
    more["requests"] = ranks.requests() - requests_;
    more["seconds"] = std::chrono::duration<double>(Clock::now() - began_).count();
    more["cpu_s"] = processor_s() - worked_;
    std::printf("%s\n", more.dump().c_str());
    std::fflush(stdout);
    began_ = Clock::now();
    worked_ = processor_s();
    requests_ = ranks.requests();
  }

 private:
  Clock::time_point began_ = Clock::now();
  double worked_ = processor_s();
  std::int64_t requests_ = 0;
};

json most_and_mean(const std::vector<std::int64_t>& values) {
  std::int64_t sum = 0;
  for (const std::int64_t value : values) sum += value;
  return {{"most", *std::max_element(values.begin(), values.end())},
          {"mean", sum / static_cast<std::int64_t>(values.size())}};
}

void start_and_save(const std::string& folder, int size) {
  Meter meter;
  Ranks ranks(size);
  meter.part("start", ranks);
  ranks.open(folder, /*filled=*/true);
  meter.part("open", ranks);
  const auto values = configuration();
  ranks.each([&](int rank) {
    ranks[rank].world().require_same("their configuration", values, "mend it");
    ranks[rank].world().require_same("the files of the model",
                                     rank % 8 == 0 ? values : std::vector<comm::NamedText>(),
                                     "copy them");
  });
  meter.part("agree", ranks);
  ranks.each([&](int rank) {
    checkpoint::StoreExchange exchange(ranks[rank].world(), "tries");
    for (int i = 0; i < kExchanges; ++i)
      require(exchange.first_problem("", "a try").empty(), "there is a problem");
  });
  meter.part("exchange", ranks, {{"exchanges", kExchanges}});
  ranks.each([&](int rank) {
    require(ranks[rank].checkpoints().save(kStep, {{"epoch", 1}}, state_of(rank)), "not saved");
    ranks[rank].checkpoints().wait();
  });
  meter.part("save", ranks);
  ranks.each([&](int rank) {  // nobody is asked while it waits
    if (rank == 0) std::this_thread::sleep_for(2s);
    checkpoint::StoreExchange exchange(ranks[rank].world(), "a wait");
    require(exchange.first_problem("", "a wait").empty(), "there is a problem");
  });
  meter.part("wait", ranks);
  ranks.stop();
  meter.part("stop", ranks);
}

// Sizes of the files that every rank has to know of a checkpoint.
json shared_bytes(const fs::path& checkpoint) {
  json sizes;
  for (const char* name : {".metadata", "floe.json", checkpoint::kStatesFile})
    sizes[name] = fs::file_size(checkpoint / name);
  std::int64_t all = 0;
  for (const auto& file : fs::directory_iterator(checkpoint))
    all += static_cast<std::int64_t>(file.file_size());
  sizes["all files"] = all;
  return sizes;
}

bool resume(const std::string& folder, int size, int saved_by) {
  Meter meter;
  Ranks ranks(size);
  ranks.open(folder, /*filled=*/false);
  meter.part("start", ranks);
  std::vector<std::int64_t> opened(static_cast<std::size_t>(size)), bytes(opened), held(opened),
      states(opened);
  std::atomic<int> wrong{0};
  ranks.each([&](int rank) {
    const FileCounts before = file_counts();
    const checkpoint::RankStates saved = size <= kAtOnce
                                             ? ranks[rank].checkpoints().resume("auto")->ranks
                                             : ranks[rank].resume_in_turn(folder);
    const FileCounts loaded = file_counts();
    // As a loader does it.
    if (size == saved_by) {
      if (saved.of(rank) != state_of(rank)) ++wrong;
    } else {
      static std::mutex one_at_a_time;  // for the sake of memory
      const std::lock_guard lock(one_at_a_time);
      if (saved.all().at(static_cast<std::size_t>(rank % saved_by)) != state_of(rank % saved_by))
        ++wrong;
    }
    const FileCounts after = file_counts();
    const auto place = static_cast<std::size_t>(rank);
    opened[place] = after.opened - before.opened;
    bytes[place] = loaded.bytes - before.bytes;
    states[place] = after.bytes - loaded.bytes;
    held[place] = ranks[rank].held_bytes();
    if (!ranks[rank].is_as_saved()) ++wrong;
  });
  const fs::path checkpoint =
      fs::path(checkpoint::checkpoints_folder(folder)) / str("step_", kStep);
  meter.part("resume", ranks,
             {{"saved_by", saved_by},
              {"files_opened", most_and_mean(opened)},
              {"bytes_read", most_and_mean(bytes)},
              {"state_bytes_read", most_and_mean(states)},
              {"bytes_held", most_and_mean(held)},
              {"sizes", shared_bytes(checkpoint)},
              {"wrong_ranks", wrong.load()}});
  ranks.stop();
  meter.part("stop", ranks);
  return wrong == 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<int> sizes;
    for (int i = 2; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
    require<ConfigError>(
        !sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](int n) { return n > 1; }),
        "usage: many_ranks FOLDER RANKS [LATER...]");
    at::set_num_threads(1);
    with_moments = std::all_of(sizes.begin(), sizes.end(), [](int n) { return n <= kAtOnce; });
    log::set_level(log::Level::warn);
    start_and_save(argv[1], sizes.front());
    bool good = true;
    for (const int size : sizes) good = resume(argv[1], size, sizes.front()) && good;
    return good ? 0 : 1;
  } catch (const std::exception& e) {
    log::error(e.what());
    return 1;
  }
}
