#include "floe/eval/tasks/task.h"

#include <filesystem>
#include <map>

#include "floe/config/input_paths.h"
#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/eval/tasks/samples.h"
#include "floe/io/file/file.h"

namespace floe::eval {
namespace {

const std::map<std::string, Metric>& metrics() {
  static const std::map<std::string, Metric> table{{"cider", Metric::cider},
                                                   {"vqa_accuracy", Metric::vqa_accuracy},
                                                   {"accuracy", Metric::accuracy},
                                                   {"roc_auc", Metric::roc_auc},
                                                   {"perplexity", Metric::perplexity}};
  return table;
}

// Paths of the command line are looked for in the working directory alone.
void find_files(TaskConfig& task, const config::Value& values) {
  const auto find = [&](const char* key, std::string& path) {
    if (path.empty()) return;
    const config::Value* value = values.at(key);
    const std::string file = value ? config::file_of(value->origin) : "";
    const std::string found = config::find_input(path, file);
    require<ConfigError>(path_exists(found), key, ": there is no '", path, "': it was looked for ",
                         config::not_found(path, file));
    path = found;
  };
  find("data.train.images", task.data.train.images);
  find("data.train.questions", task.data.train.questions);
  find("data.train.annotations", task.data.train.annotations);
  find("data.test.images", task.data.test.images);
  find("data.test.questions", task.data.test.questions);
  find("data.test.annotations", task.data.test.annotations);
  find("data.references", task.data.references);
}

bool has_classes(const TaskConfig& task) {
  return !task.candidates.empty() || task.data.layout == "jsonl";
}

}  // namespace

void describe(config::Schema<SplitConfig>& s) {
  s.field("images", &SplitConfig::images, "Folder of the pictures");
  s.field("questions", &SplitConfig::questions, "Questions of a VQA data set (JSON)");
  s.field(
      "annotations", &SplitConfig::annotations,
      "Answers of a VQA data set, Karpathy's file of captions, or samples as JSON lines or text");
}

void describe(config::Schema<TaskDataConfig>& s) {
  s.field("layout", &TaskDataConfig::layout, "How the files are laid out")
      .one_of(layouts())
      .required();
  s.section("train", &TaskDataConfig::train,
            "Where samples of contexts come from; pictures, and captions with their splits, may be "
            "those of 'test'");
  s.section("test", &TaskDataConfig::test, "What is asked");
  s.field("references", &TaskDataConfig::references,
          "Reference captions in COCO's layout (default: those of the annotations)");
}

void describe(config::Schema<TextConfig>& s) {
  s.field("max_new_tokens", &TextConfig::max_new_tokens, "At most so many tokens").at_least(1);
  s.field("min_new_tokens", &TextConfig::min_new_tokens, "No end before so many").at_least(0);
  s.field("num_beams", &TextConfig::num_beams, "Beams of the search; 1 is greedy").at_least(1);
  s.field("length_penalty", &TextConfig::length_penalty,
          "Score of a beam = log-probability / length^this");
}

void describe(config::Schema<TaskConfig>& s) {
  s.field("name", &TaskConfig::name, "What results call it (default: the name of the file)");
  s.choice("metric", &TaskConfig::metric,
           {"cider", "vqa_accuracy", "accuracy", "roc_auc", "perplexity"}, "How answers are judged")
      .required();
  s.section("data", &TaskConfig::data, "Files of the data set");
  s.field("prompt", &TaskConfig::prompt,
          "Text that asks; {name} stands for a field of the sample, {{ for a brace");
  s.field("answer", &TaskConfig::answer, "What follows the prompt in samples of the context");
  s.field("separator", &TaskConfig::separator, "What stands behind each sample of the context");
  s.field("candidates", &TaskConfig::candidates,
          "Names of the classes, by number (default: the choices of each sample)");
  s.field("candidate", &TaskConfig::candidate,
          "A candidate's text; {choice} is the class or choice, tokenised by itself");
  s.field("positive", &TaskConfig::positive,
          "The class whose probability ranks samples for roc_auc (default: the last in order)");
  s.field("stop", &TaskConfig::stop, "A text is cut before the first of these");
  s.field("remove", &TaskConfig::remove, "And these are taken out of it");
  s.field("shots", &TaskConfig::shots, "Numbers of context samples, a result for each")
      .at_least(0)
      .not_empty();
  s.field("seeds", &TaskConfig::seeds, "A trial for each, which draws its own contexts")
      .at_least(0)
      .at_most(4294967295.0)
      .not_empty();
  s.field("samples", &TaskConfig::samples, "How many test samples are drawn (0: all)").at_least(0);
  s.field("query_set", &TaskConfig::query_set, "From how many samples contexts are drawn")
      .at_least(1);
  s.field("text_shots", &TaskConfig::text_shots,
          "With 0 shots so many samples without their images stand in front")
      .at_least(0);
  s.choice("context", &TaskConfig::context, {"random", "rices"},
           "Contexts are drawn, or those of the most similar images (RICES)");
  s.choice("rules", &TaskConfig::rules, {"openflamingo", "corrected"},
           "openflamingo: with 0 shots classes are judged by the first context image, as there");
  s.section("text", &TaskConfig::text, "How texts are made");
  s.field("window", &TaskConfig::window,
          "Tokens that perplexity sees at once (0: the model's positions)")
      .at_least(0);
  s.field("prefix", &TaskConfig::prefix,
          "Token in front of each text for perplexity (-1: BOS, else EOS of the model's files)")
      .at_least(-1);
  s.check("name", [](const TaskConfig& task) {
    return task.name.find('/') == std::string::npos && task.name != "." && task.name != ".."
               ? ""
               : "names a folder of results, so it must have no slash";
  });
  s.check("candidates", [](const TaskConfig& task) {
    return !asks_classes(metric_of(task)) || has_classes(task) ? "" : "must name the classes";
  });
  s.check("candidates", [](const TaskConfig& task) {
    return task.metric != "roc_auc" || task.candidates.size() == 2
               ? ""
               : "must be two classes for roc_auc";
  });
  s.check("prompt", [](const TaskConfig& task) {
    return task.metric == "perplexity" || !task.prompt.empty() ? "" : "must not be empty";
  });
}

Metric metric_of(const TaskConfig& task) { return metrics().at(task.metric); }

bool is_task_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  if (!path.ends_with(".yaml") && !path.ends_with(".yml")) return false;
  const config::Value values = config::read_yaml(path);
  return values.at("metric") != nullptr || values.at("prompt") != nullptr;
}

TaskConfig load_task(const std::string& path, const std::vector<std::string>& changes) {
  config::Layers layers;
  layers.files = {path};
  layers.overrides = changes;
  config::Loaded<TaskConfig> loaded = config::load<TaskConfig>(layers);
  TaskConfig task = std::move(loaded.config);
  if (task.name.empty()) task.name = std::filesystem::path(path).stem().string();
  find_files(task, loaded.values);
  return task;
}

}  // namespace floe::eval
