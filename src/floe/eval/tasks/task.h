// A task of `floe eval` as a YAML file describes it.
//
//   metric: vqa_accuracy
//   data:
//     layout: vqav2
//     train: {images: train2014, questions: q_train.json, annotations: a_train.json}
//     test: {images: val2014, questions: q_val.json, annotations: a_val.json}
//   prompt: "<image>Question:{question} Short answer:"
//   answer: "{answer}<|endofchunk|>"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "floe/schema/schema.h"

namespace floe::eval {

struct SplitConfig {
  std::string images, questions, annotations;
};
void describe(config::Schema<SplitConfig>& s);

struct TaskDataConfig {
  std::string layout;  // one of layouts()
  SplitConfig train, test;
  std::string references;
};
void describe(config::Schema<TaskDataConfig>& s);

struct TextConfig {
  std::int64_t max_new_tokens = 20, min_new_tokens = 0, num_beams = 3;
  double length_penalty = 0;
};
void describe(config::Schema<TextConfig>& s);

enum class Metric { cider, vqa_accuracy, accuracy, roc_auc, perplexity };

struct TaskConfig {
  std::string name;
  std::string metric;
  TaskDataConfig data;
  std::string prompt, answer, separator = "\n";
  std::vector<std::string> candidates;
  std::string candidate = "{choice}", positive;
  std::vector<std::string> stop, remove;
  std::vector<std::int64_t> shots{0}, seeds{42};
  std::int64_t samples = 0, query_set = 2048, text_shots = 2, window = 0, prefix = -1;
  std::string context = "random", rules = "openflamingo";
  TextConfig text;
};
void describe(config::Schema<TaskConfig>& s);

Metric metric_of(const TaskConfig& task);
// Whether it is found by scores of candidates, and not in texts.
inline bool asks_scores(Metric metric) {
  return metric != Metric::cider && metric != Metric::vqa_accuracy;
}
inline bool asks_classes(Metric metric) {
  return metric == Metric::accuracy || metric == Metric::roc_auc;
}

// How many samples stand in front of the one that is asked: with 0 shots some without their images.
inline std::size_t context_size(const TaskConfig& task, std::int64_t shots) {
  return static_cast<std::size_t>(shots > 0 ? shots : task.text_shots);
}

// By its keys 'metric' or 'prompt' a task is told from a model.
bool is_task_file(const std::string& path);
// The task of a file, with changes of the command line (key=value) over it and paths made absolute
// (Note [Relative paths]). Throws ConfigError.
TaskConfig load_task(const std::string& path, const std::vector<std::string>& changes);

}  // namespace floe::eval
