#include "floe/checkpoint/checkpointer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/load.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/checkpoint/load/verify.h"
#include "floe/checkpoint/run_state.h"
#include "floe/checkpoint/save/emergency.h"
#include "floe/checkpoint/save/save_job.h"
#include "floe/checkpoint/store_exchange.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/nn/load.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// How long a failing run waits for ranks that may be gone to finish the save under way.
constexpr auto kPatience = 10s;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Different for every start of a program, the same on all ranks.
std::string random_name() {
  std::random_device device;
  return str(std::hex, device(), device());
}

// Meetings of several Checkpointers in one process must not share names.
std::string meeting_name(const char* what) {
  static int number = 0;
  return str("checkpoint/", number++, "/", what);
}

std::vector<FileTensor> own_file_tensors(const shard::ShardPlan& plan) {
  std::vector<FileTensor> tensors;
  for (const auto& parameter : plan.parameters)
    tensors.push_back(
        {parameter.name, parameter.shape, {{parameter.name, 0, parameter.numel}}, {}});
  return tensors;
}

// What other parameters stand for in the parameter that a file's tensor is called after.
std::vector<TableRows> rows_in_tables(const std::vector<FileTensor>& tensors) {
  std::vector<TableRows> rows;
  for (const FileTensor& tensor : tensors) {
    const bool is_parameter =
        std::any_of(tensor.runs.begin(), tensor.runs.end(),
                    [&](const FileRun& run) { return run.parameter == tensor.name; });
    std::int64_t at = 0;
    for (const FileRun& run : tensor.runs) {
      if (is_parameter && run.parameter != tensor.name)
        rows.push_back({tensor.name, run.parameter, at, run.first, run.count});
      at += run.count;
    }
  }
  return rows;
}

// "a, b and 3 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  if (names.size() <= kMost) return join(names, ", ");
  return str(join(std::vector(names.begin(), names.begin() + kMost), ", "), " and ",
             names.size() - kMost, " more");
}

bool same_bases(const std::vector<FrozenBase>& a, const std::vector<FrozenBase>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const FrozenBase& x, const FrozenBase& y) { return x.digest == y.digest; });
}

std::string anew_in_words(const std::vector<std::string>& sets, const std::string& path) {
  if (sets == std::vector<std::string>{""})
    return str("'", path, "' has no state of this run's optimizer, which starts anew");
  return str("'", path, "' has no state of the optimizers of ", join(sets, ", "),
             ", which start anew");
}

}  // namespace

struct Checkpointer::State {
  explicit State(CheckpointerOptions given)
      : options(std::move(given)),
        folder(checkpoints_folder(options.run_folder)),
        meeting(options.engine->world(), meeting_name("run")),
        save_meeting(options.engine->world(), meeting_name("save")) {
    run.engine = options.engine;
    run.optimizers = options.optimizers;
    check_names(run.optimizers);
    run.ema = options.ema;
    run.content = options.config.content;
    if (options.foreign.tensors.empty())
      options.foreign.tensors = own_file_tensors(run.engine->plan());
    run.rows = rows_in_tables(options.foreign.tensors);
    for (const auto& parameter : run.engine->plan().parameters)
      if (parameter.trainable) trained.insert(parameter.name);
    keep(options.foreign.always);
    keep(options.kept);
    if (world().rank() == 0) remove_leftovers(folder);
    start = meeting.from_first(random_name(), "the start of the checkpoints");
    model = model_digest(run.engine->plan());
  }

  comm::World& world() const { return run.engine->world(); }

  Manifest about(std::int64_t step) const {
    Manifest manifest;
    manifest.step = step;
    manifest.world_size = world().size();
    manifest.layout = options.config.state_dict_type;
    static_cast<Holdings&>(manifest) = holdings();
    manifest.model = model;
    manifest.sets = describe(run.optimizers);
    return manifest;
  }

  Holdings holdings() const {
    Holdings held{options.config.content, options.bases, run.kept, trained, frozen};
    held.kept->insert(trained.begin(), trained.end());
    return held;
  }

  // From now on checkpoints hold these as well. Throws ConfigError when they cannot.
  void keep(const std::set<std::string>& names) {
    run.kept.insert(names.begin(), names.end());
    // A file's tensor is written whole, with everything that it is made of.
    for (const FileTensor& tensor : options.foreign.tensors)
      if (holds_some_of(tensor))
        for (const FileRun& part : tensor.runs)
          if (!trained.contains(part.parameter)) run.kept.insert(part.parameter);
    check_savable(run);
  }
  bool holds_some_of(const FileTensor& tensor) const {
    return std::any_of(tensor.runs.begin(), tensor.runs.end(), [&](const FileRun& part) {
      return run.kept.contains(part.parameter) || trained.contains(part.parameter);
    });
  }
  // Of checkpoint_N.pt.
  std::vector<FileTensor> file_tensors() const {
    std::vector<FileTensor> tensors;
    for (const FileTensor& tensor : options.foreign.tensors)
      if (run.content == Content::full || holds_some_of(tensor)) tensors.push_back(tensor);
    return tensors;
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
  void validate(const std::string& path);
  void keep_what_it_holds(const SavedState& saved);
  // Says which of the checkpoint's state this run has no place for.
  void tell_what_ends(const SavedState& saved) const;
  void check_bases(const Manifest& manifest, const std::string& path) const;
  void write_emergency_files(std::int64_t step, const nlohmann::json& shared,
                             const nlohmann::json& rank_state);

  CheckpointerOptions options;
  std::string folder, start, model;
  RunState run;
  std::set<std::string> trained;  // by some set
  std::set<std::string> frozen;   // Holdings::frozen
  Meeting meeting, save_meeting;  // of the training thread and of the one that writes

  HostCopy copies;
  std::thread writer;
  std::exception_ptr failure;  // of the writer; read after it has been joined
  std::string last_saved;

  bool dirty = true;  // the slices are of no step: before resume() and during an update
  std::optional<c10::Event> updated;  // on an accelerator: the last update is over
  double stolen_s = 0, last_stolen_s = 0;

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
  state_->meeting.leave();
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
    verify(path, ranges_of(path, manifest), world().rank(), world().size());
  }
  opened = open_saved(path, run, options.foreign);
  loadable = check_fits(*opened, run);
}

// See Note [What a checkpoint holds].
void Checkpointer::State::keep_what_it_holds(const SavedState& saved) {
  // All weights of a full checkpoint of another base are not in this run's files.
  const bool told =
      saved.manifest && saved.manifest->kept && same_bases(saved.manifest->bases, options.bases);
  std::set<std::string> held;
  std::vector<std::string> more, missing, lost;
  for (const auto& parameter : run.engine->plan().parameters) {
    if (!nn::find_any(*saved.weights, parameter.name, parameter.other_names)) {
      missing.push_back(parameter.name);
      if (options.kept.contains(parameter.name)) lost.push_back(parameter.name);
      continue;
    }
    if (told && !saved.manifest->kept->contains(parameter.name)) continue;
    held.insert(parameter.name);
    if (!told && !has(run, parameter)) more.push_back(parameter.name);
  }
  const std::size_t all = run.engine->plan().parameters.size();
  require<ConfigError>(!options.nothing_initialised || missing.empty(),
                       "model.skip_init leaves every parameter without a value, but '", saved.path,
                       "' holds only ", all - missing.size(), " of ", all,
                       "; remove model.skip_init, or resume from a checkpoint with content: full");
  keep(held);
  if (saved.manifest)
    for (const auto& names :
         {saved.manifest->trained.value_or(std::set<std::string>()), saved.manifest->frozen})
      for (const std::string& name : names)
        if (!trained.contains(name)) frozen.insert(name);
  if (world().rank() != 0) return;
  tell_what_ends(saved);
  if (!lost.empty())
    log::warn("'", saved.path, "' does not hold ", some_of(lost),
              ", which are not in the frozen files either: they are as model.weights or the seed "
              "gives them now");
  if (!more.empty())
    log::info(
        "'", saved.path, "' does not say which of its parameters are in this run's frozen ",
        "files, so this run's checkpoints hold all of them; they do not train: ", some_of(more));
}

void Checkpointer::State::tell_what_ends(const SavedState& saved) const {
  // Of those that an earlier start froze, it was said then.
  std::vector<std::string> frozen_now;
  if (saved.manifest)
    for (const std::string& name : frozen)
      if (!saved.manifest->frozen.contains(name)) frozen_now.push_back(name);
  if (!frozen_now.empty())
    log::warn(some_of(frozen_now),
              " trained until now and are frozen from here on: their weights stay in the ",
              "checkpoints, in strategy.mixed_precision.param, but their optimizer state, averages "
              "and fp32 masters end with '",
              saved.path, "', which checkpoint.keep may remove");
  for (const SetOptimizer& set : run.optimizers) {
    const auto state = saved.optimizers.find(set.name);
    if (state == saved.optimizers.end()) continue;
    std::vector<std::string> unused;
    const auto& known = set.optimizer->state_names();
    for (const auto& [key, source] : state->second)
      if (key != "step" && std::find(known.begin(), known.end(), key) == known.end())
        unused.push_back(key);
    if (!unused.empty())
      log::warn("'", saved.path, "' has ", join(unused, ", "), " of another optimizer, which ",
                set.optimizer->kind(), " does not keep: they end here");
  }
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

std::optional<Restored> Checkpointer::State::resume(const std::string& mode) {
  const bool first = world().rank() == 0;
  const bool only_own = mode == "auto";
  std::vector<std::string> paths, passed_over;
  if (first) {
    passed_over = gather_emergencies(folder, about(0));
    if (only_own)
      paths = candidates(folder, passed_over);
    else
      paths = candidates_from(mode, folder, passed_over);
  }
  Choice choice = choose(
      paths, [this](const std::string& path) { validate(path); }, meeting);
  passed_over.insert(passed_over.end(), choice.passed_over.begin(), choice.passed_over.end());
  passed_over =
      nlohmann::json::parse(
          meeting.from_first(nlohmann::json(passed_over)
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                             "the choice of a checkpoint"))
          .get<std::vector<std::string>>();
  if (choice.path.empty()) {
    require<CheckpointError>(
        only_own && list_checkpoints(folder).empty(), "no checkpoint of '",
        only_own ? folder : mode, "' can be used: ",
        passed_over.empty() ? std::string("there is none") : join(passed_over, "; "),
        only_own ? "; set run.resume to never to start anew" : "");
    if (first)
      for (const std::string& sentence : passed_over) log::warn(sentence);
    return std::nullopt;
  }
  keep_what_it_holds(*opened);
  std::string problem;
  try {
    load(*opened, run, loadable);
  } catch (const std::exception& e) {
    problem = e.what();
  }
  problem = meeting.first_problem(problem, "the load of a checkpoint");
  require<CheckpointError>(problem.empty(), "'", choice.path, "' could not be loaded: ", problem);

  Restored restored;
  restored.step = opened->step;
  restored.shared = opened->shared;
  restored.path = choice.path;
  restored.own = opened->manifest.has_value();
  restored.anew = loadable.anew(run);
  restored.has_optimizer = restored.anew.empty();
  restored.passed_over = passed_over;
  if (opened->manifest) {
    restored.ranks = opened->manifest->ranks;
    restored.emergency = opened->manifest->emergency;
  }
  const bool own = fs::path(choice.path).parent_path() == fs::path(folder);
  std::string why = own || is_run_folder(mode) ? ", the newest checkpoint that is whole"
                                               : ", where run.resume lets this run begin";
  if (restored.emergency)
    why = ", which was saved when the run failed and is not older than the others";
  if (own && !only_own)
    why += str("; '", mode,
               "', where run.resume lets the run begin, is passed over (to begin there once more, "
               "choose another run.name)");
  restored.sentence =
      str("continuing after step ", restored.step, " from '", choice.path, "'", why);
  if (first) {
    for (const std::string& sentence : passed_over) log::warn(sentence);
    log::info(restored.sentence);
    if (!restored.anew.empty()) log::warn(anew_in_words(restored.anew, choice.path));
  }
  opened.reset();
  return restored;
}

// ---- saving ----

bool Checkpointer::save(std::int64_t step, const nlohmann::json& shared,
                        const nlohmann::json& rank_state,
                        const std::map<std::string, double>& metrics) {
  State& s = *state_;
  require<CheckpointError>(
      s.run.optimizers.empty() || s.run.optimizers.size() == s.run.engine->sets().size(),
      "the engine has ", s.run.engine->sets().size(),
      " sets, but this Checkpointer was made with the ", "optimizers of ", s.run.optimizers.size(),
      "; make a new one after Engine::set_trainable");
  const auto begin = Clock::now();
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
  job->file_tensors = s.file_tensors();
  job->tensors = state_tensors(s.run, Share::part);
  const bool direct = !s.options.config.async && s.world().device().is_cpu();
  if (!direct) job->tensors = s.copies.of(std::move(job->tensors));
  const auto write = [&s, job] {
    try {
      s.last_saved = run_save(*job, s.save_meeting);
      if (s.world().rank() == 0)
        log::info("saved step ", job->header.step, " to '", s.last_saved, "'");
    } catch (...) {
      s.failure = std::current_exception();
    }
  };
  if (s.options.config.async)
    s.writer = std::thread(write);
  else
    write();
  s.last_stolen_s = since(begin);
  s.stolen_s += s.last_stolen_s;
  if (s.options.config.async) return good;
  return s.settle(std::exchange(s.failure, nullptr)) && good;
}

bool Checkpointer::wait() {
  const auto begin = Clock::now();
  const std::exception_ptr error = state_->finish_writing();
  state_->stolen_s += since(begin);
  return state_->settle(error);
}

// ---- the way out ----

void Checkpointer::State::write_emergency_files(std::int64_t step, const nlohmann::json& shared,
                                                const nlohmann::json& rank_state) {
  std::vector<StateTensor> tensors;
  if (const c10::Device device = world().device(); device.is_cpu()) {
    tensors = state_tensors(run, Share::held);
  } else {
    // The stream of the computation may wait for ever, for a collective that no peer takes part in. What
    // is still on its way from the host store is waited for by the stream that is current.
    const c10::impl::VirtualGuardImpl accelerator(device.type());
    const c10::Stream side = accelerator.getStreamFromGlobalPool(device);
    if (updated) updated->block(side);
    const c10::Stream computing = accelerator.exchangeStream(side);
    try {
      tensors = copies.of(state_tensors(run, Share::held));
    } catch (...) {
      accelerator.exchangeStream(computing);
      throw;
    }
    accelerator.exchangeStream(computing);
  }
  RankHeader own = header(step, rank_state);
  own.shared = shared;
  own.holdings = to_json(holdings());
  write_emergency(folder, own, tensors, state_objects(run));
  log::info("wrote this rank's part of an emergency checkpoint of step ", step, " to '", folder,
            "'");
  if (complete_emergency(folder, own, about(step)))
    log::info("the emergency checkpoint of step ", step, " is whole: '", folder, "/", kEmergency,
              "'");
}

void Checkpointer::emergency(std::int64_t step, const nlohmann::json& shared,
                             const nlohmann::json& rank_state) noexcept {
  State& s = *state_;
  try {
    s.save_meeting.hurry(kPatience);
    s.meeting.hurry(kPatience);
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
    s.write_emergency_files(step, shared, rank_state);
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

double Checkpointer::stolen_s() const { return state_->stolen_s; }
double Checkpointer::last_stolen_s() const { return state_->last_stolen_s; }
std::string Checkpointer::last_saved() const {
  // The writer sets it; whoever asks has waited.
  return state_->last_saved;
}

}  // namespace floe::checkpoint
