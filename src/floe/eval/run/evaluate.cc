#include "floe/eval/run/evaluate.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/utf8.h"
#include "floe/eval/run/rices.h"
#include "floe/eval/tasks/prompts.h"
#include "floe/generation/generation_defaults.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/requests/output.h"

namespace floe::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostResultBytes = std::int64_t{1} << 36;
constexpr std::int64_t kWindowWithoutLimit = 2048;

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  require<ConfigError>(!error, "cannot make the folder '", path, "': ", error.message());
}

// What a trial asks, and how its answers are judged.
struct Trial {
  std::vector<nlohmann::json> requests;
  TrialDraw draw;
  std::vector<std::size_t> windows;  // of each text
};

class Evaluation {
 public:
  Evaluation(const TaskData& data, const AskedModel& model, const EvaluateOptions& options)
      : task_(data.task),
        tests_(data.tests),
        train_(data.train),
        model_(model),
        options_(options),
        metric_(metric_of(task_)) {
    require<ConfigError>(model.ready.built.tokenizer != nullptr, "task '", task_.name,
                         "' has texts, but the model has no tokenizer; set 'tokenizer:' in its "
                         "YAML");
  }

  std::optional<std::vector<TaskResult>> run() {
    std::vector<TaskResult> results;
    for (const std::int64_t shots : shots_asked()) {
      TaskResult& result = results.emplace_back();
      result.model = model_.name;
      result.checkpoint = model_.checkpoint;
      result.step = model_.step;
      result.task = task_.name;
      result.metric = task_.metric;
      result.shots = shots;
      for (const std::int64_t seed : seeds_asked()) {
        const auto score = run_trial(shots, seed);
        if (!score) return std::nullopt;
        if (is_first() || in_memory()) result.trials.emplace_back(seed, *score);
      }
    }
    return results;
  }

  std::vector<comm::NamedText> trials() {
    std::vector<comm::NamedText> all;
    for (const std::int64_t shots : shots_asked())
      for (const std::int64_t seed : seeds_asked()) {
        const Trial trial = make_trial(shots, seed);
        const auto source = source_of(trial, shots, seed);
        all.push_back({source->name(), source->digest()});
      }
    return all;
  }

 private:
  bool in_memory() const { return options_.folder.empty(); }
  bool is_first() const { return !options_.how.world || options_.how.world->rank() == 0; }

  // Perplexity has no context, and nothing is drawn.
  std::vector<std::int64_t> shots_asked() const {
    return metric_ == Metric::perplexity ? std::vector<std::int64_t>{0} : task_.shots;
  }
  std::vector<std::int64_t> seeds_asked() const {
    return metric_ == Metric::perplexity ? std::vector<std::int64_t>{task_.seeds[0]} : task_.seeds;
  }

  Trial make_trial(std::int64_t shots, std::int64_t seed) {
    Trial trial;
    if (metric_ == Metric::perplexity) {
      trial.draw = draw_trial({.seed = static_cast<std::uint64_t>(seed),
                               .tests = tests_.size(),
                               .asked = static_cast<std::size_t>(task_.samples)});
      std::sort(trial.draw.asked.begin(), trial.draw.asked.end());  // as they lie in the file
      add_windows(trial);
      return trial;
    }
    const bool rices = task_.context == "rices";
    const std::size_t context = context_size(task_, shots);
    trial.draw = draw_trial({.seed = static_cast<std::uint64_t>(seed),
                             .tests = tests_.size(),
                             .asked = static_cast<std::size_t>(task_.samples),
                             .train = train_.size(),
                             .query_set = rices ? 0 : static_cast<std::size_t>(task_.query_set),
                             .context = context});
    if (rices && context > 0) add_similar(trial, context);
    trial.requests = requests_of(task_, tests_, train_, trial.draw, shots);
    return trial;
  }

  void add_similar(Trial& trial, std::size_t context) {
    const auto pictures = [](const std::vector<Sample>& samples) {
      std::vector<std::string> paths;
      for (const Sample& sample : samples)
        paths.push_back(sample.images.empty() ? "" : sample.images[0]);
      return paths;
    };
    if (!known_.defined()) known_ = image_features(model_.ready, pictures(train_));
    std::vector<Sample> asked;
    for (const std::size_t number : trial.draw.asked) asked.push_back(tests_[number]);
    trial.draw.context =
        most_similar(image_features(model_.ready, pictures(asked)), known_, context);
  }

  void add_windows(Trial& trial) const {
    const std::int64_t length = task_.window > 0    ? task_.window
                                : model_.window > 0 ? model_.window
                                                    : kWindowWithoutLimit;
    require<ConfigError>(task_.prefix >= 0 || model_.prefix, "task '", task_.name,
                         "': the model's files name neither BOS nor EOS; set prefix to a token id");
    const std::int64_t prefix = task_.prefix >= 0 ? task_.prefix : *model_.prefix;
    for (const std::size_t number : trial.draw.asked) {
      const Sample& text = tests_[number];
      const auto ids =
          model_.ready.built.tokenizer->encode(text.fields.at("text"), /*add_special=*/false);
      const auto windows = windows_of({ids.begin(), ids.end()}, prefix, length);
      trial.windows.push_back(windows.size());
      for (const Window& window : windows)
        trial.requests.push_back({{"ids", window.context},
                                  {"candidates", nlohmann::json::array({window.tokens})},
                                  {"id", text.id}});
    }
  }

  requests::Work work(std::int64_t shots, std::int64_t seed) const {
    const generation::GenerateOptions text = text_options();
    requests::Work work = asks_scores(metric_)
                              ? requests::score_work(model_.ready, options_.how.batch_tokens)
                              : requests::generate_work(model_.ready, text);
    work.name = str("eval ", task_.name);
    if (metric_ != Metric::perplexity)
      work.name += str(" (", counted(shots, "shot"), ", seed ", seed, ")");
    return work;
  }
  generation::GenerateOptions text_options() const {
    generation::GenerateOptions text = model_.text;
    text.max_new_tokens = task_.text.max_new_tokens;
    text.min_new_tokens = task_.text.min_new_tokens;
    text.num_beams = task_.text.num_beams;
    text.length_penalty = task_.text.length_penalty;
    return text;
  }

  Json settings_of(const requests::RequestSource& source) const {
    Json settings = options_.settings;
    settings["checkpoint"] = shown_bytes(model_.checkpoint);
    settings["weights"] = model_.digest;
    settings["task"] = task_.name;
    settings["requests"] = source.size();
    settings["digest"] = source.digest();
    if (!asks_scores(metric_)) {
      settings["max_new_tokens"] = task_.text.max_new_tokens;
      settings["min_new_tokens"] = task_.text.min_new_tokens;
      settings["num_beams"] = task_.text.num_beams;
      settings["length_penalty"] = task_.text.length_penalty;
    }
    return settings;
  }

  // Whether an earlier start has finished this file.
  bool is_done(const std::string& path, const Json& settings) const {
    if (options_.force || !path_exists(path)) return false;
    const std::string file = path + ".settings.json";
    const Json found =
        path_exists(file) ? Json::parse(read_text(file, 1 << 24), nullptr, false) : Json();
    for (const auto& [key, value] : settings.items())
      require<ConfigError>(found.is_object() && found.contains(key) && found[key] == value, "'",
                           path, "' has results of other settings (", key, ": ",
                           found.is_object() && found.contains(key) ? found[key].dump() : "nothing",
                           " there, ", value.dump(),
                           " now); name another --output, or replace them with --force");
    return true;
  }

  // The same, for all ranks: rank 0 decides, as others may see its files later.
  bool all_done(const std::string& path, const Json& settings) const {
    comm::World* world = options_.how.world;
    if (world) {
      std::vector<comm::NamedText> values;
      for (const auto& [key, value] : settings.items()) values.push_back({key, value.dump()});
      world->require_same("what they evaluate", values,
                          "start all ranks with the same files and the same command line");
    }
    const bool done = is_first() && is_done(path, settings);
    return requests::agree(world, "eval/" + path, done ? "done" : "")[0] == "done";
  }

  std::unique_ptr<requests::RequestList> source_of(const Trial& trial, std::int64_t shots,
                                                   std::int64_t seed) const {
    return std::make_unique<requests::RequestList>(
        str("task '", task_.name, "' (shots ", shots, ", seed ", seed, ")"), trial.requests,
        model_.ready.built,
        requests::RequestNeeds{.candidates = asks_scores(metric_),
                               .new_tokens = task_.text.max_new_tokens});
  }

  // Nothing: stopped.
  std::optional<TrialScore> run_trial(std::int64_t shots, std::int64_t seed) {
    const std::string folder = str(options_.folder, "/", task_.name, "/", model_.folder);
    const std::string path = str(folder, "/shots_", shots, "_seed_", seed, ".jsonl");
    const Trial trial = make_trial(shots, seed);
    if (trial.requests.empty()) return judge(trial, {});
    const auto list = source_of(trial, shots, seed);
    const requests::RequestList& source = *list;
    if (in_memory()) {
      requests::MemoryOutput output(options_.how.world);
      if (requests::run_requests(source, work(shots, seed), output, options_.how).stopped)
        return std::nullopt;
      return judge(trial, output.records());
    }
    const Json settings = settings_of(source);
    if (!all_done(path, settings)) {
      if (is_first()) {
        make_folder(folder);
        write_file_atomically(path + ".settings.json", settings.dump(2) + "\n");
      }
      const auto output =
          requests::file_output({path, settings, options_.force}, options_.how.world);
      if (requests::run_requests(source, work(shots, seed), *output, options_.how).stopped)
        return std::nullopt;
    }
    if (!is_first()) return TrialScore();
    TrialScore score = judge(trial, read_records(path));
    write_file_atomically(
        path.substr(0, path.size() - std::string_view(".jsonl").size()) + ".answers.json",
        score.answers.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    return score;
  }

  static std::vector<nlohmann::json> read_records(const std::string& path) {
    std::vector<nlohmann::json> records;
    std::istringstream lines(read_text(path, kMostResultBytes));
    for (std::string line; std::getline(lines, line);) records.push_back(parse_json(line, path));
    return records;
  }

  TrialScore judge(const Trial& trial, const std::vector<nlohmann::json>& records) const {
    if (metric_ != Metric::perplexity) return judge_trial(task_, tests_, trial.draw, records);
    std::vector<Sample> texts;
    for (const std::size_t number : trial.draw.asked) texts.push_back(tests_[number]);
    return judge_perplexity(texts, trial.windows, records);
  }

  const TaskConfig& task_;
  const std::vector<Sample>&tests_, &train_;
  const AskedModel& model_;
  const EvaluateOptions& options_;
  Metric metric_;
  at::Tensor known_;  // features of the training pictures, once they are needed
};

}  // namespace

AskedModel asked_model(const requests::ReadyModel& ready, const models::ModelConfig& config) {
  const models::ModelInfo& info = ready.built.model->info();
  const auto defaults = generation::generation_defaults(config, *ready.built.model);
  AskedModel model{.ready = ready};
  model.text.eos = defaults.eos;
  model.text.images_of_whole_text = defaults.images_of_whole_text;
  model.window =
      info.position_rows > 0 ? info.position_rows - info.position_offset : defaults.positions;
  model.prefix = defaults.bos;
  return model;
}

std::vector<comm::NamedText> trials_of(const TaskData& data, const AskedModel& model) {
  const EvaluateOptions options;
  return Evaluation(data, model, options).trials();
}

void warn_of_rules(const TaskData& data, const AskedModel& model) {
  const TaskConfig& task = data.task;
  if (task.rules == "openflamingo" && asks_classes(metric_of(task)) && task.text_shots > 0 &&
      std::find(task.shots.begin(), task.shots.end(), 0) != task.shots.end() &&
      model.ready.built.model->media_token() >= 0)
    log::warn("task '", task.name,
              "': with 0 shots OpenFlamingo judges classes by the first picture of the context "
              "instead of the one in question, and so does this; set rules: corrected for the "
              "right one");
  if (task.data.layout == "ok_vqa" && metric_of(task) == Metric::vqa_accuracy)
    log::warn("task '", task.name,
              "': OpenFlamingo stems answers to OK-VQA with NLTK before it judges them, and this "
              "does not, so that scores are lower than its own; docs/evaluation.md says how its "
              "stemmer is run over the answers");
}

std::optional<std::vector<TaskResult>> evaluate(const TaskData& data, const AskedModel& model,
                                                const EvaluateOptions& options) {
  const bool speaks = !options.how.world || options.how.world->rank() == 0;
  if (speaks && !options.how.quiet) warn_of_rules(data, model);
  return Evaluation(data, model, options).run();
}

}  // namespace floe::eval
