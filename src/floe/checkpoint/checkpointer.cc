#include "floe/checkpoint/checkpointer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/held_parameters.h"
#include "floe/checkpoint/load/load.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/checkpoint/run_state.h"
#include "floe/checkpoint/save/host_copy.h"
#include "floe/checkpoint/save/save_job.h"
#include "floe/checkpoint/store_exchange.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/stopwatch.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// How long a failing run waits for ranks that may be gone to finish the save under way.
constexpr auto kPatience = 10s;

// Different for every start of a program, the same on all ranks.
std::string random_name() {
  std::random_device device;
  return str(std::hex, device(), device());
}

// Exchanges of several Checkpointers in one world must not share names.
std::string exchange_name(comm::World& world, const char* what) {
  return str("checkpoint/", world.count("checkpoint"), "/", what);
}

std::string anew_in_words(const std::vector<std::string>& sets, const std::string& path) {
  if (sets == std::vector<std::string>{""})
    return str("'", path, "' has no state of this run's optimizer, which starts anew");
  return str("'", path, "' has no state of the optimizers of ", join(sets, ", "),
             ", which start anew");
}

CheckpointerOptions with_file_tensors(CheckpointerOptions options) {
  if (options.foreign.tensors.empty())
    options.foreign.tensors = own_file_tensors(options.engine->plan());
  return options;
}

RunState run_state_of(const CheckpointerOptions& options) {
  check_names(options.optimizers);
  RunState run;
  run.engine = options.engine;
  run.optimizers = options.optimizers;
  run.ema = options.ema;
  run.content = options.config.content;
  return run;
}

}  // namespace

struct Checkpointer::State {
  explicit State(CheckpointerOptions given)
      : options(with_file_tensors(std::move(given))),
        folder(checkpoints_folder(options.run_folder)),
        run(run_state_of(options)),
        held(run, options),
        exchange(world(), exchange_name(world(), "run")),
        save_exchange(world(), exchange_name(world(), "save")) {
    if (world().rank() == 0) remove_leftovers(folder);
    start = exchange.broadcast(random_name(), "the start of the checkpoints");
    model = model_digest(run.engine->plan());
  }

  comm::World& world() const { return run.engine->world(); }

  // From the slices themselves, without a copy.
  bool writes_directly() const { return !options.config.async && world().device().is_cpu(); }

  Manifest about(std::int64_t step) const {
    Manifest manifest;
    manifest.step = step;
    manifest.world_size = world().size();
    manifest.layout = options.config.state_dict_type;
    static_cast<Holdings&>(manifest) = held.holdings();
    manifest.model = model;
    manifest.sets = describe(run.optimizers);
    return manifest;
  }

  RankHeader header(std::int64_t step, const nlohmann::json& rank_state) const {
    return {step,
            world().rank(),
            world().size(),
            start,
            model,
            rank_state,
            /*shared=*/nullptr,
            describe(run.optimizers),
            /*holdings=*/nullptr};
  }

  // Waits for the save under way. Its error, if any, is the result.
  std::exception_ptr finish_writing() {
    if (writer.joinable()) writer.join();
    return std::exchange(failure, nullptr);
  }

  void set_saved(const std::string& path, double seconds) {
    using Clock = std::chrono::system_clock;
    const double now_s = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    const std::lock_guard lock(saved_mutex);
    saved = {path, now_s, seconds};
  }
  void set_saving(std::optional<Stopwatch> since) {
    const std::lock_guard lock(saved_mutex);
    saving = since;
  }

  // True when all is well; false when training is to go on without the save.
  bool settle(const std::exception_ptr& error) {
    if (!error) return true;
    if (options.config.on_failure == OnFailure::stop) std::rethrow_exception(error);
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      log::error(e.what(), "; training goes on (checkpoint.on_failure: continue)");
    }
    return false;
  }

  std::optional<Restored> resume(const std::string& mode);
  // Collective: the checkpoint to continue from is opened; empty: there is none.
  std::string choose_checkpoint(const std::string& mode, std::vector<std::string>& passed_over);
  void validate(const std::string& path);
  void check_bases(const Manifest& manifest, const std::string& path) const;
  // Collective.
  void load_opened();
  std::string why_chosen(const Restored& restored, const std::string& mode) const;
  // Writes this rank's part of an emergency set.
  RankHeader write_part(std::int64_t step, const nlohmann::json& shared,
                        const nlohmann::json& rank_state);
  // Makes a checkpoint of the parts, where this rank is the one to do so. True when it did.
  bool complete_set(const RankHeader& own);

  CheckpointerOptions options;
  std::string folder, start, model;
  RunState run;
  HeldParameters held;
  StoreExchange exchange, save_exchange;  // of the training thread and of the one that writes

  HostCopy copies;
  std::thread writer;
  std::exception_ptr failure;  // of the writer; read after it has been joined
  mutable std::mutex saved_mutex;
  Saved saved;                      // the last; the writer sets it
  std::optional<Stopwatch> saving;  // the one under way

  bool dirty = true;  // the slices are of no step: before resume() and during an update
  std::optional<c10::Event> updated;  // on an accelerator: the last update is over
  double blocking_seconds = 0, last_blocking_seconds = 0;

  std::optional<SavedState> opened;  // the candidate that was validated last
  Loadable loadable;
};

Checkpointer::Checkpointer(CheckpointerOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

Checkpointer::~Checkpointer() {
  if (const std::exception_ptr error = state_->finish_writing()) try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      log::error(e.what());
    }
}

// ---- resuming ----

void Checkpointer::State::check_bases(const Manifest& manifest, const std::string& path) const {
  if (manifest.content == Content::full) return;
  // Older ones do not name the files of a model that began partly from random numbers.
  if (!manifest.kept && manifest.bases.empty()) return;
  require<CheckpointError>(manifest.bases.size() == options.bases.size(), "'", path,
                           "' was trained on ", manifest.bases.size(),
                           " frozen files, but this run has ", options.bases.size(),
                           "; use the model block it was saved with");
  for (std::size_t i = 0; i < options.bases.size(); ++i)
    require<CheckpointError>(manifest.bases[i].digest == options.bases[i].digest, "'", path,
                             "' was trained on the frozen weights '", manifest.bases[i].path,
                             "' (digest ", manifest.bases[i].digest, "), but those of this run, '",
                             options.bases[i].path, "', have the digest ", options.bases[i].digest);
}

void Checkpointer::State::validate(const std::string& path) {
  opened.reset();
  require<CheckpointError>(fs::exists(path), "'", path, "' does not exist");
  // The small files first: what they say is not used before it is known to be right.
  if (fs::exists(manifest_path(path))) {
    const Manifest manifest = read_manifest(manifest_path(path));
    require<CheckpointError>(manifest.model == model, "'", path,
                             "' is of another model: the names or shapes of its parameters differ");
    check_bases(manifest, path);
    verify(path, manifest, world().rank(), world().size());
  }
  opened = open_saved(path, run, options.foreign);
  loadable = check_fits(*opened, run);
}

std::optional<Restored> Checkpointer::resume(const std::string& mode) {
  State& s = *state_;
  s.dirty = true;
  auto restored = mode == "never" ? std::nullopt : s.resume(mode);
  require<ConfigError>(restored || !s.options.nothing_initialised,
                       "model.skip_init leaves every parameter without a value, and there is no "
                       "checkpoint to take them from; remove model.skip_init, or resume from a "
                       "checkpoint with content: full");
  s.dirty = false;
  return restored;
}

std::string Checkpointer::State::choose_checkpoint(const std::string& mode,
                                                   std::vector<std::string>& passed_over) {
  const bool only_own = mode == "auto";
  std::vector<std::string> paths;
  if (world().rank() == 0) {
    passed_over = gather_emergencies(folder, about(0));
    if (only_own)
      paths = candidates(folder, passed_over);
    else
      paths = candidates_from(mode, folder, passed_over);
  }
  const Choice choice = choose(
      paths, [this](const std::string& path) { validate(path); }, exchange);
  passed_over.insert(passed_over.end(), choice.passed_over.begin(), choice.passed_over.end());
  const std::string text =
      nlohmann::json(passed_over).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  passed_over = nlohmann::json::parse(exchange.broadcast(text, "the choice of a checkpoint"))
                    .get<std::vector<std::string>>();
  require<CheckpointError>(
      !choice.path.empty() ||
          (only_own && list_checkpoints(folder).empty() && !last_is_a_copy(folder)),
      "no checkpoint of '", only_own ? folder : mode, "' can be used: ",
      passed_over.empty() ? std::string("there is none") : join(passed_over, "; "),
      only_own ? "; set run.resume to never to start anew" : "");
  return choice.path;
}

void Checkpointer::State::load_opened() {
  std::string problem;
  try {
    load(*opened, run, loadable);
  } catch (const std::exception& e) {
    problem = e.what();
  }
  problem = exchange.first_problem(problem, "the load of a checkpoint");
  require<CheckpointError>(problem.empty(), "'", opened->path, "' could not be loaded: ", problem);
}

std::string Checkpointer::State::why_chosen(const Restored& restored,
                                            const std::string& mode) const {
  std::string why = restored.of_this_run || is_run_folder(mode)
                        ? ", the newest checkpoint that is whole"
                        : ", where run.resume lets this run begin";
  if (restored.emergency)
    why = ", which was saved when the run failed and is not older than the others";
  if (restored.of_this_run && mode != "auto")
    why += str("; '", mode,
               "', where run.resume lets the run begin, is passed over (to begin there once more, "
               "choose another run.name)");
  return why;
}

std::optional<Restored> Checkpointer::State::resume(const std::string& mode) {
  const bool first = world().rank() == 0;
  Restored restored;
  restored.path = choose_checkpoint(mode, restored.passed_over);
  const auto log_passed_over = [&] {
    for (const std::string& sentence : restored.passed_over) log::warn(sentence);
  };
  if (restored.path.empty()) {
    if (first) log_passed_over();
    return std::nullopt;
  }
  held.take_over(*opened);
  load_opened();
  restored.step = opened->step;
  restored.shared = opened->shared;
  restored.own = opened->manifest.has_value();
  restored.of_this_run = fs::path(restored.path).parent_path() == fs::path(folder);
  restored.anew = loadable.anew(run);
  restored.has_optimizer = restored.anew.empty();
  if (opened->manifest) {
    restored.ranks = opened->manifest->ranks;
    restored.emergency = opened->manifest->emergency;
  }
  restored.sentence = str("continuing after step ", restored.step, " from '", restored.path, "'",
                          why_chosen(restored, mode));
  if (first) {
    log_passed_over();
    log::info(restored.sentence);
    if (!restored.anew.empty()) log::warn(anew_in_words(restored.anew, restored.path));
  }
  opened.reset();
  return restored;
}

// ---- saving ----

void Checkpointer::prepare() {
  State& s = *state_;
  if (!s.writes_directly()) s.copies.prepare(state_tensors(s.run, Share::part));
}

bool Checkpointer::save(std::int64_t step, const nlohmann::json& shared,
                        const nlohmann::json& rank_state,
                        const std::map<std::string, double>& metrics) {
  State& s = *state_;
  require<CheckpointError>(
      s.run.optimizers.empty() || s.run.optimizers.size() == s.run.engine->sets().size(),
      "the engine has ", s.run.engine->sets().size(),
      " sets, but this Checkpointer was made with the ", "optimizers of ", s.run.optimizers.size(),
      "; make a new one after Engine::set_trainable");
  const Stopwatch watch;
  const bool good = s.settle(s.finish_writing());
  auto job = std::make_shared<SaveJob>();
  job->config = s.options.config;
  job->folder = s.folder;
  job->about = s.about(step);
  job->about.shared = shared;
  job->about.metrics = metrics;
  job->header = s.header(step, rank_state);
  for (const SetOptimizer& set : s.run.optimizers)
    job->optimizers.push_back({set.name, set.optimizer->parameter_groups()});
  if (s.world().rank() == 0) job->objects = state_objects(s.run);
  job->file_tensors = s.held.file_tensors();
  job->tensors = state_tensors(s.run, Share::part);
  if (!s.writes_directly()) job->tensors = s.copies.of(std::move(job->tensors));
  s.save_exchange.begin_meeting();
  s.set_saving(watch);
  const auto write = [&s, job, watch] {
    try {
      const std::string path = run_save(*job, s.save_exchange);
      s.set_saved(path, watch.seconds());
      if (s.world().rank() == 0) log::info("saved step ", job->header.step, " to '", path, "'");
    } catch (...) {
      s.failure = std::current_exception();
    }
    s.set_saving(std::nullopt);
  };
  if (s.options.config.async)
    s.writer = std::thread(write);
  else
    write();
  s.last_blocking_seconds = watch.seconds();
  s.blocking_seconds += s.last_blocking_seconds;
  if (s.options.config.async) return good;
  return s.settle(std::exchange(s.failure, nullptr)) && good;
}

bool Checkpointer::wait() {
  const Stopwatch watch;
  const std::exception_ptr error = state_->finish_writing();
  state_->blocking_seconds += watch.seconds();
  return state_->settle(error);
}

// ---- the way out ----

RankHeader Checkpointer::State::write_part(std::int64_t step, const nlohmann::json& shared,
                                           const nlohmann::json& rank_state) {
  std::vector<StateTensor> tensors;
  HostCopy others;  // while a save under way has the copies
  if (const c10::Device device = world().device(); device.is_cpu()) {
    tensors = state_tensors(run, Share::held);
  } else {
    // The stream of the computation may wait for ever, for a collective that no peer takes part in.
    // What is still on its way from the host store is waited for by the stream that is current.
    const c10::impl::VirtualGuardImpl accelerator(device.type());
    const c10::Stream side = accelerator.getStreamFromGlobalPool(device);
    if (updated) updated->block(side);
    const c10::Stream computing = accelerator.exchangeStream(side);
    try {
      tensors = (writer.joinable() ? others : copies).of(state_tensors(run, Share::held));
    } catch (...) {
      accelerator.exchangeStream(computing);
      throw;
    }
    accelerator.exchangeStream(computing);
  }
  RankHeader own = header(step, rank_state);
  own.shared = shared;
  own.holdings = to_json(held.holdings());
  write_emergency(folder, own, tensors, state_objects(run));
  log::info("wrote this rank's part of an emergency checkpoint of step ", step, " to '", folder,
            "'");
  return own;
}

bool Checkpointer::State::complete_set(const RankHeader& own) {
  if (!complete_emergency(folder, own, about(own.step))) return false;
  log::info("the emergency checkpoint of step ", own.step, " is whole: '", folder, "/", kEmergency,
            "'");
  return true;
}

double Checkpointer::expected_seconds() const {
  const std::lock_guard lock(state_->saved_mutex);
  const double last = state_->saved.seconds;
  if (!state_->saving) return last;
  const double so_far = state_->saving->seconds();
  return std::max(0.0, last - so_far) + std::max(last, so_far);
}

void Checkpointer::save_apart(std::int64_t step, const nlohmann::json& shared,
                              const nlohmann::json& rank_state) {
  State& s = *state_;
  const Stopwatch watch;
  const auto caught = [](const auto& work) -> std::string {
    try {
      work();
      return "";
    } catch (const std::exception& e) {
      return e.what();
    }
  };
  RankHeader own;
  const std::string here = caught([&] { own = s.write_part(step, shared, rank_state); });
  if (const std::exception_ptr error = s.finish_writing())
    log::error(caught([&] { std::rethrow_exception(error); }));
  // From here on no save is under way on any rank: nothing comes between.
  s.save_exchange.begin_meeting();
  const std::string what = str("the emergency set of step ", step);
  std::string problem = s.save_exchange.first_problem(here, what);
  if (problem.empty()) {
    const bool completes = s.world().rank() == 0;
    problem =
        s.save_exchange.first_problem(completes ? caught([&] { s.complete_set(own); }) : "", what);
  }
  require<CheckpointError>(problem.empty(), what, " failed: ", problem);
  s.set_saved(str(s.folder, "/", kEmergency), watch.seconds());
}

void Checkpointer::emergency(std::int64_t step, const nlohmann::json& shared,
                             const nlohmann::json& rank_state) noexcept {
  State& s = *state_;
  try {
    s.save_exchange.hurry(kPatience);
    s.exchange.hurry(kPatience);
    if (const std::exception_ptr error = s.finish_writing()) try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        log::error(e.what());
      }
    if (!s.options.config.on_exception) return;
    if (s.dirty) {
      log::warn(
          "no emergency save: the failure came in the middle of an update, a switch of sets or a "
          "load, so the slices are of no step; resume goes back to the last checkpoint");
      return;
    }
    s.complete_set(s.write_part(step, shared, rank_state));
  } catch (const std::exception& e) {
    log::error("no emergency save: ", e.what());
  } catch (...) {
    log::error("no emergency save: an unknown error");
  }
}

Checkpointer::Updating::Updating(Checkpointer& owner)
    : owner_(owner), exceptions_(std::uncaught_exceptions()) {
  owner_.state_->dirty = true;
}

Checkpointer::Updating::~Updating() {
  State& s = *owner_.state_;
  if (std::uncaught_exceptions() > exceptions_) return;
  s.dirty = false;
  const c10::Device device = s.world().device();
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl accelerator(device.type());
  s.updated.emplace(device.type());
  s.updated->record(accelerator.getStream(device));
}

double Checkpointer::blocking_seconds() const { return state_->blocking_seconds; }
double Checkpointer::last_blocking_seconds() const { return state_->last_blocking_seconds; }
std::int64_t Checkpointer::host_bytes() const { return state_->copies.bytes(); }
Saved Checkpointer::last_save() const {
  const std::lock_guard lock(state_->saved_mutex);
  return state_->saved;
}

}  // namespace floe::checkpoint
