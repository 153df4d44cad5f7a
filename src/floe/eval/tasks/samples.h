// Samples of data sets, in the layouts that OpenFlamingo's evaluation reads.
//
//   coco, flickr      Karpathy's JSON of captions; pictures by file name
//   vqav2, ok_vqa     questions and annotations of the VQA challenge; pictures of COCO by id, in a
//                     folder train2014, val2014 or test2015
//   textvqa, vizwiz   the same with pictures by id or name
//   hateful_memes     JSON lines: id, img, label, text
//   jsonl             JSON lines with any fields: images, answers, references, choices, label and
//                     texts
//   text              a text file as one document, or JSON lines with "text": for perplexity
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/eval/metrics/vqa_accuracy.h"
#include "floe/eval/tasks/task.h"

namespace floe::eval {

const std::vector<std::string>& layouts();

struct Sample {
  nlohmann::json id;
  std::vector<std::string> images;  // paths; whether they are there shows when they are read
  std::map<std::string, std::string> fields;  // for templates
  std::vector<std::string> references;        // captions
  std::vector<GivenAnswer> answers;
  std::vector<std::string> choices;
  std::int64_t label = -1;  // of the classes or choices
};

enum class Split { train, test };

// Throws ConfigError for a path that is needed and not given, DataError for what is no such file:
// the message names the file and the entry.
std::vector<Sample> read_samples(const TaskConfig& task, Split split);

// A task with its samples.
struct TaskData {
  TaskConfig task;
  std::vector<Sample> tests, train;  // train: where contexts are asked for
};
// Throws as read_samples does.
TaskData read_task_data(TaskConfig task);

}  // namespace floe::eval
