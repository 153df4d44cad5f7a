// floe eval: few-shot tasks and their metrics.
#include <cctype>
#include <filesystem>
#include <iostream>
#include <map>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/cli/requests_job.h"
#include "floe/comm/world.h"
#include "floe/core/hash.h"
#include "floe/core/utf8.h"
#include "floe/eval/run/evaluate.h"
#include "floe/eval/tasks/prompts.h"
#include "floe/eval/tasks/results.h"
#include "floe/eval/tasks/task.h"
#include "floe/io/file/file.h"
#include "floe/observe/report/logged_scores.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostResultsBytes = std::int64_t{1} << 30;

struct EvalJob {
  std::vector<std::string> models;
  std::vector<eval::TaskData> tasks;
  Args changes;
  std::string folder;
};

// A task that comes with floe: configs/eval/NAME.yaml.
std::string own_task(const std::string& name) {
  const std::string path = own_configs() + "/eval/" + name + ".yaml";
  return name.find('/') == std::string::npos && path_exists(path) ? path : "";
}

// All checkpoints of a run, oldest first.
std::vector<std::string> checkpoints_of(const std::string& path) {
  require<ConfigError>(kind_of(path) == PathKind::run,
                       "eval: --all-checkpoints is for a run folder, "
                       "and '",
                       path, "' is none");
  const std::string folder = checkpoint::checkpoints_folder(checkpoint::run_at(path));
  std::vector<std::string> paths;
  for (const checkpoint::Listed& listed : checkpoint::list_checkpoints(folder))
    paths.insert(paths.begin(), folder + "/" + listed.name);
  require<ConfigError>(!paths.empty(), "eval: the run '", path, "' has saved no checkpoint yet");
  return paths;
}

Args task_changes(const Options& options) {
  Args changes = options.values("--set");
  for (const char* name : {"shots", "seeds"})
    if (const auto list = options.value(str("--", name)))
      changes.push_back(str(name, "=[", *list, "]"));
  if (const auto samples = options.value("--samples")) changes.push_back("samples=" + *samples);
  return changes;
}

// RUN/eval for a run, where `floe report` finds it.
std::string output_folder(const Options& options, const Args& models) {
  for (const std::string& path : models) require_path("eval", path);
  std::string folder;
  if (const auto named = options.value("--output"))
    folder = *named;
  else if (models.size() == 1 && kind_of(models[0]) == PathKind::run)
    folder = checkpoint::run_at(models[0]) + "/" + report::kScoresFolder;
  require<ConfigError>(!folder.empty(),
                       "eval: name a folder for answers and results with --output; only that of a "
                       "single run is known, RUN/eval");
  std::error_code ignored;
  require<ConfigError>(!path_exists(folder) || fs::is_directory(folder, ignored),
                       "eval: --output is '", folder, "', which is no folder");
  return fs::absolute(folder).lexically_normal().string();
}

// Results of a model have one place.
void require_another(bool is_new, const std::string& before, const std::string& path) {
  require<ConfigError>(is_new, "eval: '", before, "' and '", path,
                       "' are the same model; name it once");
}

EvalJob read_job(const Options& options) {
  const Words words = split_words(options.words());
  EvalJob job;
  job.changes = words.changes;
  const Args changes = task_changes(options);
  Args named;  // models, as they are named
  std::vector<eval::TaskConfig> tasks;
  for (const std::string& word : words.paths) {
    const std::string own = path_exists(word) ? "" : own_task(word);
    if (!own.empty() || eval::is_task_file(word))
      tasks.push_back(eval::load_task(own.empty() ? word : own, changes));
    else
      named.push_back(word);
  }
  require<ConfigError>(
      !named.empty() && !tasks.empty(),
      "eval: expected a model (a run folder, a checkpoint, an exported folder or a "
      "YAML) and a task (a YAML with 'metric:', or the name of one of floe's "
      "own), got ",
      counted(std::ssize(named), "model"), " and ", counted(std::ssize(tasks), "task"));
  for (std::size_t a = 0; a < tasks.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      require<ConfigError>(tasks[a].name != tasks[b].name, "eval: two tasks are named '",
                           tasks[a].name, "'; give one another 'name:'");
  std::map<std::string, std::string> places;
  for (const std::string& path : named) {
    std::error_code error;
    const std::string place = fs::weakly_canonical(path, error).string();
    const auto [same, is_new] = places.emplace(error ? path : place, path);
    require_another(is_new, same->second, path);
  }
  job.folder = output_folder(options, named);
  for (const std::string& path : named)
    if (options.has("--all-checkpoints"))
      for (const std::string& checkpoint : checkpoints_of(path)) job.models.push_back(checkpoint);
    else
      job.models.push_back(path);
  // What is wrong with the files of a task is said before a model is loaded.
  for (eval::TaskConfig& task : tasks) {
    job.tasks.push_back(eval::read_task_data(std::move(task)));
    eval::check_prompts(job.tasks.back());
  }
  return job;
}

// A name for files: the last parts of the path, of RUN/checkpoints/NAME those that differ, and its
// checksum.
std::string short_name(const std::string& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  fs::path above = whole.parent_path();
  if (above.filename() == "checkpoints") above = above.parent_path();
  std::string name = above.filename().string() + "-" + whole.filename().string();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  return name + "-" + hex_digits(crc32(whole.string()), 8);
}

eval::AskedModel asked_model(const LoadedModel& loaded, const std::string& name) {
  eval::AskedModel model = eval::asked_model(loaded.ready(), loaded.config);
  model.name = name;
  model.folder = short_name(loaded.origin);
  model.checkpoint = fs::absolute(loaded.origin).lexically_normal().string();
  model.digest = weights_digest(loaded);
  model.step = checkpoint::step_of_name(fs::path(loaded.origin).filename().string()).value_or(-1);
  return model;
}

// Nothing: stopped by a signal.
std::optional<std::vector<eval::TaskResult>> ask_as_rank(
    const EvalJob& job, const Options& options, const std::shared_ptr<comm::World>& world) {
  eval::EvaluateOptions how;
  how.folder = job.folder;
  how.force = options.has("--force");
  how.settings = {{"changes", shown_bytes(join(job.changes, " "))},
                  {"dtype", options.value("--dtype").value_or("fp32")}};
  how.how.batch_tokens = batch_tokens_of(options);
  how.how.world = world.get();
  how.how.stop = &stop_on_signals();
  std::vector<eval::TaskResult> results;
  std::map<std::string, std::string> asked;  // checkpoints, and as what they were named
  for (const std::string& path : job.models) {
    const LoadedModel loaded = load_model("eval", path, job.changes, options, world);
    generation::require_decoder(*loaded.built.model);
    const eval::AskedModel model = asked_model(loaded, path);
    const auto [same, is_new] = asked.emplace(model.checkpoint, path);
    require_another(is_new, same->second, path);
    for (const eval::TaskData& task : job.tasks) {
      const auto found = eval::evaluate(task, model, how);
      if (!found) return std::nullopt;
      results.insert(results.end(), found->begin(), found->end());
    }
  }
  return results;
}

// results.json keeps what earlier commands have found of other models, tasks and shots.
void print_results(const EvalJob& job, const std::vector<eval::TaskResult>& results, bool json) {
  const auto text_of = [](const nlohmann::ordered_json& value) {
    return value.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  };
  const nlohmann::ordered_json found = eval::results_json(results);
  const std::string file = job.folder + "/" + report::kScoresFile;
  const std::string before = path_exists(file) ? read_text(file, kMostResultsBytes) : "";
  write_file_atomically(file, text_of(eval::merged_results(before, found)));
  std::cout << (json ? text_of(found) : eval::results_table(results));
}

void make_output(const EvalJob& job) {
  std::error_code error;
  fs::create_directories(job.folder, error);
  require<ConfigError>(!error, "eval: cannot make the folder '", job.folder,
                       "': ", error.message());
}

Exit run_eval(const Args& args) {
  const Options options(kEvalCommand, args);
  const EvalJob job = read_job(options);
  comm::WorldOptions place = ranks_of("eval", options);
  std::optional<std::vector<eval::TaskResult>> results;
  if (place.rendezvous.world_size == 1) {
    make_output(job);
    results = ask_as_rank(job, options, nullptr);
    if (results) print_results(job, *results, options.has("--json"));
    return results ? Exit::done : Exit::stopped;
  }
  place.run = job.folder;
  const auto world = comm::World::join(place);
  const int code = comm::guarded(*world, [&] {
    if (world->rank() == 0) make_output(job);
    results = ask_as_rank(job, options, world);
    if (results && world->rank() == 0) print_results(job, *results, options.has("--json"));
  });
  if (code != 0) return static_cast<Exit>(code);
  return results ? Exit::done : Exit::stopped;
}

std::vector<OptionRow> eval_options() {
  return {
      {"--output", "FOLDER",
       "answers and results.json (default: RUN/eval, where floe report finds it); started again "
       "after an interruption, the command goes on with "
       "what is missing"},
      {"--force", "", "replace what is there"},
      {"--all-checkpoints", "", "every checkpoint of a run, for a curve"},
      {},
      {"--shots", "LIST", "numbers of context samples, such as 0,4,8, for all tasks"},
      {"--seeds", "LIST", "a trial for each, such as 42,43,44, for all tasks"},
      {"--samples", "N", "so many test samples of each task (0: all)"},
      {"--set", "KEY=VALUE", "a key of the tasks, such as data.test.images=val2014; may repeat",
       kRepeats},
      {},
      {"--json", "", "print the results as JSON instead of a table"},
      batch_tokens_option(),
      sharded_option(),
      dtype_option(),
      device_option(),
  };
}

}  // namespace

const Command kEvalCommand{
    .name = "eval",
    .summary = "few-shot tasks and their metrics: captions, questions, classes, perplexity",
    .about = R"(usage: floe eval MODEL... TASK... [--output FOLDER] [key=value] [options]

Asks a model what a task has to ask and judges the answers: CIDEr of captions, VQA accuracy, accuracy or
ROC-AUC of classes by log-probability, perplexity of texts. A task is a YAML with prompt templates, files
and a metric, or the name of one that comes with floe: coco, flickr30k, vqav2, ok_vqa, textvqa, vizwiz,
hateful_memes. Contexts are drawn as OpenFlamingo draws them; its stemming of answers to ok_vqa is not done. What
cannot be asked is counted and named.
)",
    .options = eval_options(),
    .closing = R"(  floe eval runs/demo task.yaml --output scores --shots 0,4 --seeds 42,43,44
  floe eval runs/demo task.yaml --all-checkpoints
  floe launch -n 2 -- eval runs/demo task.yaml --output scores

Over several ranks each does its share, with the whole model or, with --sharded, its slices of it. MODEL
and key=value are as for floe generate. docs/evaluation.md tells more.
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_eval,
};

}  // namespace floe::cli
