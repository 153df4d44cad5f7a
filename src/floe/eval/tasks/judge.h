// From the results of a trial's requests to its score.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/eval/tasks/draw.h"
#include "floe/eval/tasks/samples.h"

namespace floe::eval {

// Of one trial. CIDEr × 100 and VQA accuracy in percent, as OpenFlamingo reports them; accuracy and
// ROC-AUC from 0 to 1; perplexity per word.
struct TrialScore {
  double score = std::numeric_limits<double>::quiet_NaN();  // not a number: nothing to judge by
  std::map<std::string, double> others;                     // further numbers of the same answers
  std::int64_t asked = 0, judged = 0;
  // Samples that have no answer are in no score; they are counted by reason and the first named.
  std::map<std::string, std::int64_t> problems;
  std::vector<std::string> first_problems;
  // What was answered, in the form in which challenges take it: image_id and caption, question_id
  // and answer, or id, label and prediction.
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
};

// `records`: the results of requests_of, in order.
TrialScore judge_trial(const TaskConfig& task, const std::vector<Sample>& tests,
                       const TrialDraw& draw, const std::vector<nlohmann::json>& records);

// `records`: of the windows of all texts, one after the other; `windows`: how many each text has. A
// text of which a window failed is left out.
TrialScore judge_perplexity(const std::vector<Sample>& texts,
                            const std::vector<std::size_t>& windows,
                            const std::vector<nlohmann::json>& records);

}  // namespace floe::eval
