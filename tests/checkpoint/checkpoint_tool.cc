// A small training run that saves and resumes, for tests from outside: one process per rank.
//
//   checkpoint_tool run=DIR steps=10 [key=value ...]
//
// Every step has the same global batch at every world size, so that losses can be compared. Rank 0
// prints one JSON line per step, and one for what was resumed. The way out after a failure is a
// trainer's: an emergency save, then exit code 1.
//
// With sets="a:PATTERN,PATTERN b:PATTERN" the sets train in turn, `phase` steps each, and do `rest`
// meanwhile.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "floe/checkpoint/checkpointer.h"
#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/models/transformer.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/registry.h"
#include "floe/optim/optimizers/sgd.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"

namespace floe {
namespace {

using nlohmann::json;

constexpr int kGlobalBatch = 12;

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string text = argv[i];
      const auto equals = text.find('=');
      require<ConfigError>(equals != std::string::npos, "'", text, "' is not KEY=VALUE");
      values_[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  std::string text(const std::string& key, const std::string& fallback) const {
    const auto found = values_.find(key);
    return found == values_.end() ? fallback : found->second;
  }
  std::int64_t number(const std::string& key, std::int64_t fallback) const {
    const auto found = values_.find(key);
    return found == values_.end() ? fallback : std::stoll(found->second);
  }
  double real(const std::string& key, double fallback) const {
    const auto found = values_.find(key);
    return found == values_.end() ? fallback : std::stod(found->second);
  }
  bool has(const std::string& key) const { return values_.contains(key); }

 private:
  std::map<std::string, std::string> values_;
};

template <class E>
E named(const std::string& text) {
  for (const auto& [name, value] : enum_names(E{}))
    if (name == text) return value;
  throw ConfigError(str("'", text, "' is unknown"));
}

shard::Rest rest_from(const std::string& name) {
  for (const auto rest : {shard::Rest::keep, shard::Rest::offload, shard::Rest::drop})
    if (name == shard::name_of(rest)) return rest;
  throw ConfigError(str("'", name, "' is no way to rest"));
}

std::vector<shard::ParameterSet> sets_from(const std::string& text, shard::Rest rest) {
  std::vector<shard::ParameterSet> sets;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto colon = word.find(':');
    shard::ParameterSet& set = sets.emplace_back();
    set.name = word.substr(0, colon);
    set.rest = rest;
    std::istringstream patterns(word.substr(colon + 1));
    for (std::string pattern; std::getline(patterns, pattern, ',');)
      set.patterns.push_back(pattern);
  }
  return sets;
}

// The last one to be told that a set rests, when the others' state has left already.
class MiddleOfSwitch final : public shard::SliceOwner {
 public:
  explicit MiddleOfSwitch(std::function<void()> reached) : reached_(std::move(reached)) {}
  void deactivate(std::size_t, std::size_t) override { reached_(); }
  void activate(std::size_t) override {}
  void relayout(const shard::Relayout&) override {}

 private:
  std::function<void()> reached_;
};

// Where a rank is to fail: "forward:3:1" is in the forward of the update number 3 of rank 1.
struct Failure {
  std::string place;
  std::int64_t step = -1;
  int rank = -1;
  static Failure parse(const std::string& text) {
    Failure failure;
    const auto a = text.find(':'), b = text.rfind(':');
    if (text.empty()) return failure;
    failure.place = text.substr(0, a);
    failure.step = std::stoll(text.substr(a + 1, b - a - 1));
    failure.rank = std::stoi(text.substr(b + 1));
    return failure;
  }
};

class Run {
 public:
  explicit Run(const Arguments& arguments) : arguments_(arguments) {
    comm::WorldOptions options;
    // FLOE_TEST_DEVICE=cuda: all ranks on the one GPU.
    options.device = std::getenv("FLOE_TEST_DEVICE") ? c10::Device(c10::kCUDA, 0) : c10::kCPU;
    options.backend = comm::Backend::gloo;
    options.timeout = std::chrono::seconds(arguments.number("timeout", 60));
    options.rendezvous = comm::find_rendezvous({}, comm::process_environment());
    world = comm::World::join(options);
    failure_ = Failure::parse(arguments.text("fail", ""));
    size_ = {.vocab = 61,
             .dim = arguments.number("dim", 24),
             .layers = static_cast<int>(arguments.number("layers", 3)),
             .heads = 3,
             .context = 12,
             .tied = arguments.number("tied", 0) != 0,
             .adapter = 5};
    model = std::make_shared<models::Transformer>(size_);
    shard::ShardOptions sharding;
    sharding.world = world;
    sharding.strategy = named<shard::Strategy>(arguments.text("strategy", "full_shard"));
    sharding.hybrid_shard_size = static_cast<int>(arguments.number("hybrid", 2));
    sharding.frozen.sharding =
        named<shard::FrozenSharding>(arguments.text("frozen_sharding", "all"));
    sharding.seed = static_cast<std::uint64_t>(arguments.number("seed", 7));
    sharding.sets =
        sets_from(arguments.text("sets", ""), rest_from(arguments.text("rest", "keep")));
    if (arguments.has("trainable")) sharding.trainable = {{arguments.text("trainable", "")}};
    if (arguments.number("mixed", 0)) {
      sharding.mixed_precision.param = at::kBFloat16;
      sharding.mixed_precision.reduce = at::kFloat;
    }
    engine = shard::fully_shard(
        model, {.units = {arguments.text("units", "DecoderLayer")}, .lone_unit_numel = 1000},
        sharding);
    for (std::size_t set = 0; set < engine->sets().size(); ++set)
      optimizers.push_back(make_optimizer(set));
    if (arguments.has("ema")) ema = std::make_unique<optim::Ema>(*engine, arguments.real("ema", 0));
    checkpoint::CheckpointerOptions saving;
    saving.config.state_dict_type = named<checkpoint::Layout>(arguments.text("layout", "sharded"));
    saving.config.content = named<checkpoint::Content>(arguments.text("content", "trainable"));
    saving.config.async = arguments.number("async", 0) != 0;
    saving.config.keep = arguments.number("keep", 2);
    saving.config.on_exception = arguments.number("on_exception", 1) != 0;
    saving.config.on_failure = named<checkpoint::OnFailure>(arguments.text("on_failure", "stop"));
    if (arguments.has("keep_best"))
      saving.config.keep_best = {"loss", arguments.number("keep_best", 0),
                                 checkpoint::Better::lower};
    saving.run_folder = arguments.text("run", ".");
    saving.engine = engine.get();
    for (std::size_t set = 0; set < optimizers.size(); ++set)
      saving.optimizers.push_back({engine->sets()[set].name, optimizers[set].get()});
    saving.ema = ema.get();
    if (arguments.has("base")) saving.bases = {{"base", arguments.text("base", "")}};
    checkpoints = std::make_unique<checkpoint::Checkpointer>(saving);
    engine->add_owner(&middle_of_switch_);
  }
  ~Run() { engine->remove_owner(&middle_of_switch_); }

  void train() {
    if (const auto restored = checkpoints->resume(arguments_.text("resume", "auto"))) {
      step = restored->step;
      print({{"resumed", restored->step},
             {"path", restored->path},
             {"emergency", restored->emergency},
             {"optimizer", restored->has_optimizer},
             {"anew", restored->anew},
             {"set", engine->sets()[engine->active_set()].name},
             {"shared", restored->shared},
             {"ranks", restored->ranks.all()},
             {"passed_over", restored->passed_over}});
      if (arguments_.has("dump_loaded")) dump(arguments_.text("dump_loaded", ""));
    }
    const std::int64_t steps = arguments_.number("steps", 4);
    const std::int64_t every = arguments_.number("save_every", 0);
    while (step < steps) {
      begin_of_step = rank_state();
      fail_if("boundary");
      switch_set();
      train_step();
      if (step == 1 && arguments_.number("prepare", 0)) {
        checkpoints->prepare();
        print({{"prepared_bytes", checkpoints->host_bytes()}});
      }
      if (every > 0 && step % every == 0) {
        const bool good = checkpoints->save(step, shared_state(), rank_state(), {{"loss", loss_}});
        if (!good) print({{"save_failed", step}});
      }
    }
    if (!checkpoints->wait()) print({{"save_failed", step}});
    if (arguments_.has("dump")) dump(arguments_.text("dump", ""));
    print({{"blocking_seconds", checkpoints->blocking_seconds()},
           {"host_bytes", checkpoints->host_bytes()}});
  }

  json shared_state() const {
    json shared{{"epoch", step / 4},
                {"step", step},
                {"config", {{"lr", 3e-3}, {"name", "tool"}}},
                {"schedule", {{"last_epoch", step}, {"base_lrs", {3e-3, 3e-3}}}}};
    if (arguments_.number("config", 1) == 0) shared.erase("config");
    return shared;
  }
  json rank_state() const { return {{"rank", world->rank()}, {"next_batch", step}}; }

  std::shared_ptr<comm::World> world;
  std::shared_ptr<models::Transformer> model;
  std::shared_ptr<shard::Engine> engine;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;  // of each set
  std::unique_ptr<optim::Ema> ema;
  std::unique_ptr<checkpoint::Checkpointer> checkpoints;
  std::int64_t step = 0;
  json begin_of_step;

 private:
  void print(const json& line) const {
    if (world->rank() == 0) std::cout << line.dump() << std::endl;
  }

  std::unique_ptr<optim::Optimizer> make_optimizer(std::size_t set) const {
    if (arguments_.text("optimizer", "adamw") == "sgd")
      return std::make_unique<optim::Sgd>(*engine, optim::SgdOptions{0.9, {0.05, {"*weight"}}},
                                          set);
    return std::make_unique<optim::AdamW>(
        *engine, optim::AdamWOptions{0.9, 0.99, 1e-8, {0.1, {"*weight"}}}, set);
  }

  void switch_set() {
    const auto turn = static_cast<std::size_t>(step / arguments_.number("phase", 1));
    const auto updating = checkpoints->updating();
    engine->activate(turn % engine->sets().size());
  }

  void fail_if(const char* place) const {
    if (failure_.step != step + 1 || failure_.rank != world->rank()) return;
    if (failure_.place == "die" && std::string(place) == "forward") ::kill(::getpid(), SIGKILL);
    if (failure_.place == "die in switch" && std::string(place) == "switch")
      ::kill(::getpid(), SIGKILL);
    if (failure_.place == place) throw std::runtime_error(str("told to fail in ", place));
  }

  void train_step() {
    fail_if("data");
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + step));
    const at::Tensor all =
        at::randint(0, size_.vocab, {kGlobalBatch, size_.context}, generator, at::kLong);
    const int mine = kGlobalBatch / world->size();
    const at::Tensor ids = all.narrow(0, world->rank() * mine, mine).to(world->device());
    at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    fail_if("forward");
    if (failure_.place == "backward" && failure_.step == step + 1 && failure_.rank == world->rank())
      loss.register_hook(
          [](const at::Tensor&) { throw std::runtime_error("told to fail in backward"); });
    loss.backward();
    const double own = loss.item<double>();
    const auto agreement = engine->agree(true, std::array{own});
    loss_ = agreement.sums[0] / world->size();
    fail_if("before update");
    {
      const auto updating = checkpoints->updating();
      optimizers[engine->active_set()]->step(3e-3);
      fail_if("update");
      if (ema) ema->update();
    }
    engine->clear_gradients();
    step += 1;
    print({{"step", step}, {"loss", loss_}, {"norm", agreement.gradient_norm}});
  }

  // The slices as they are, with what they are of: bytes that went through nothing.
  void dump(const std::string& prefix) const {
    json index = json::array();
    std::ofstream data(str(prefix, ".", world->rank(), ".bin"), std::ios::binary);
    std::int64_t at = 0;
    const auto add = [&](const shard::FlatGroup& group, const std::string& kind,
                         const at::Tensor& slice) {
      const at::Tensor floats = slice.to(at::kCPU, at::kFloat).contiguous();
      for (const shard::Piece& piece : group.pieces()) {
        const auto& parameter = group.parameter(piece.index);
        const auto number = &parameter - engine->plan().parameters.data();
        index.push_back({{"kind", kind},
                         {"name", parameter.name},
                         {"shape", parameter.shape},
                         {"number", number},
                         {"first", piece.first},
                         {"numel", piece.numel},
                         {"at", at}});
        data.write(
            reinterpret_cast<const char*>(floats.const_data_ptr<float>() + piece.slice_offset),
            piece.numel * 4);
        at += piece.numel;
      }
    };
    for (const auto& group : engine->groups()) add(*group, "model", group->values());
    const auto groups = engine->trainable_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (ema) add(*groups[g], "ema", ema->slice(g));
      for (const auto& optimizer : optimizers) {
        const std::string& set = engine->sets()[optimizer->set()].name;
        const std::string above = set.empty() ? "" : set + "/";
        for (const auto& slice : optimizer->state_slices(g))
          add(*groups[g], above + slice.name, slice.values);
        if (const at::Tensor updates = optimizer->updates(g); updates.defined())
          for (const shard::Piece& piece : groups[g]->pieces())
            index.push_back({{"kind", above + "step"},
                             {"name", groups[g]->parameter(piece.index).name},
                             {"value", updates.item<double>()}});
      }
    }
    std::ofstream(str(prefix, ".", world->rank(), ".json")) << index.dump();
  }

  const Arguments& arguments_;
  models::TransformerSize size_;
  Failure failure_;
  MiddleOfSwitch middle_of_switch_{[this] { fail_if("switch"); }};
  double loss_ = 0;
};

int main_of(int argc, char** argv) {
  try {
    const Arguments arguments(argc, argv);
    Run run(arguments);
    try {
      run.train();
    } catch (const std::exception& e) {
      log::error(e.what());
      run.world->announce_failure(e.what());
      run.checkpoints->emergency(run.step, run.shared_state(), run.begin_of_step);
      std::quick_exit(1);
    }
    return 0;
  } catch (const std::exception& e) {
    log::error(e.what());
    std::quick_exit(2);
  }
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) { return floe::main_of(argc, argv); }
