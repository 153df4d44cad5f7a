#include "floe/eval/tasks/judge.h"

#include <algorithm>
#include <cmath>

#include "floe/core/error.h"
#include "floe/eval/metrics/cider.h"
#include "floe/eval/metrics/ptb_words.h"
#include "floe/eval/metrics/ranking.h"
#include "floe/eval/metrics/words.h"
#include "floe/eval/tasks/prompts.h"

namespace floe::eval {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kNamedProblems = 5;

void count_problem(TrialScore& score, const Json& record) {
  ++score.problems[record.at("reason").get<std::string>()];
  if (score.first_problems.size() < kNamedProblems)
    score.first_problems.push_back(record.at("error").get<std::string>());
}

// An answer and the sample that it is of.
struct Answered {
  const Sample& sample;
  const Json& record;
};

std::vector<Answered> answered(TrialScore& score, const std::vector<Sample>& tests,
                               const TrialDraw& draw, const std::vector<Json>& records) {
  require(records.size() == draw.asked.size(), "there are ", records.size(), " results of ",
          draw.asked.size(), " requests");
  std::vector<Answered> found;
  score.asked = std::ssize(records);
  for (std::size_t i = 0; i < records.size(); ++i)
    if (records[i].contains("reason"))
      count_problem(score, records[i]);
    else
      found.push_back({tests[draw.asked[i]], records[i]});
  score.judged = std::ssize(found);
  return found;
}

std::string text_of(const TaskConfig& task, const Json& record) {
  return cut_answer(task, record.at("text").at(0).get<std::string>());
}

void judge_captions(const TaskConfig& task, const std::vector<Answered>& all, TrialScore& score) {
  std::vector<Captioned> images;
  for (const Answered& one : all) {
    const std::string caption = text_of(task, one.record);
    score.answers.push_back({{"image_id", one.sample.id}, {"caption", caption}});
    Captioned& image = images.emplace_back();
    image.caption = ptb_words(caption);
    for (const std::string& reference : one.sample.references)
      image.references.push_back(ptb_words(reference));
  }
  if (!images.empty()) score.score = 100 * cider(images).mean;
}

void judge_questions(const TaskConfig& task, const std::vector<Answered>& all, TrialScore& score) {
  double sum = 0;
  bool judged = !all.empty();
  for (const Answered& one : all) {
    const std::string answer = text_of(task, one.record);
    score.answers.push_back({{"question_id", one.sample.id}, {"answer", answer}});
    judged = judged && !one.sample.answers.empty();
    sum += vqa_accuracy(answer, one.sample.answers);
  }
  if (judged) score.score = 100 * sum / static_cast<double>(all.size());
}

std::size_t largest(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::size_t num_chars(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void judge_classes(const TaskConfig& task, const std::vector<Answered>& all, TrialScore& score) {
  double right = 0, right_by_sum = 0, right_by_chars = 0, right_by_bytes = 0, labelled = 0;
  std::vector<double> ranks;
  std::vector<bool> positive;
  const auto& classes = task.candidates;
  const std::string rising = !task.positive.empty() ? task.positive
                             : classes.empty()      ? ""
                                               : *std::max_element(classes.begin(), classes.end());
  const auto place =
      static_cast<std::size_t>(std::find(classes.begin(), classes.end(), rising) - classes.begin());
  for (const Answered& one : all) {
    const auto means = one.record.at("log_probs_per_token").get<std::vector<double>>();
    const auto sums = one.record.at("log_probs").get<std::vector<double>>();
    const auto& names = classes_of(task, one.sample);
    std::vector<double> per_char, per_byte;
    for (std::size_t c = 0; c < sums.size(); ++c) {
      const auto per = [&](std::size_t length) {
        return sums[c] / static_cast<double>(std::max<std::size_t>(1, length));
      };
      per_char.push_back(per(num_chars(names[c])));
      per_byte.push_back(per(names[c].size()));
    }
    const std::size_t chosen = largest(means);
    const std::vector<double> shares = softmax(means);
    score.answers.push_back({{"id", one.sample.id},
                             {"label", one.sample.label},
                             {"prediction", chosen},
                             {"probability", shares[chosen]}});
    if (one.sample.label < 0) continue;
    const auto label = static_cast<std::size_t>(one.sample.label);
    ++labelled;
    right += chosen == label;
    right_by_sum += largest(sums) == label;
    right_by_chars += largest(per_char) == label;
    right_by_bytes += largest(per_byte) == label;
    if (place < shares.size()) {
      ranks.push_back(shares[place]);
      positive.push_back(label == place);
    }
  }
  if (labelled == 0) return;
  score.others["accuracy"] = right / labelled;
  score.others["accuracy_by_sum"] = right_by_sum / labelled;
  score.others["accuracy_by_characters"] = right_by_chars / labelled;
  score.others["accuracy_by_bytes"] = right_by_bytes / labelled;
  if (metric_of(task) == Metric::roc_auc)
    score.score = roc_auc(ranks, positive);
  else
    score.score = score.others["accuracy"];
}

}  // namespace

TrialScore judge_trial(const TaskConfig& task, const std::vector<Sample>& tests,
                       const TrialDraw& draw, const std::vector<Json>& records) {
  TrialScore score;
  const std::vector<Answered> all = answered(score, tests, draw, records);
  switch (metric_of(task)) {
    case Metric::cider: judge_captions(task, all, score); break;
    case Metric::vqa_accuracy: judge_questions(task, all, score); break;
    case Metric::accuracy:
    case Metric::roc_auc: judge_classes(task, all, score); break;
    case Metric::perplexity: throw Error("perplexity is judged by windows");
  }
  return score;
}

TrialScore judge_perplexity(const std::vector<Sample>& texts,
                            const std::vector<std::size_t>& windows,
                            const std::vector<Json>& records) {
  TrialScore score;
  double log_prob = 0, words = 0, bytes = 0, tokens = 0;
  std::size_t next = 0;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    double of_text = 0, tokens_of_text = 0;
    const Json* problem = nullptr;
    for (std::size_t w = 0; w < windows[t]; ++w, ++next) {
      const Json& record = records.at(next);
      if (record.contains("reason")) {
        problem = problem ? problem : &record;
        continue;
      }
      of_text += record.at("log_probs").at(0).get<double>();
      tokens_of_text += record.at("tokens").at(0).get<double>();
    }
    ++score.asked;
    const std::string& text = texts[t].fields.at("text");
    const Json empty{{"reason", "text"}, {"error", str("text ", texts[t].id.dump(), " is empty")}};
    if (!problem && windows[t] == 0) problem = &empty;
    if (problem) {
      count_problem(score, *problem);
      continue;
    }
    ++score.judged;
    score.answers.push_back(
        {{"id", texts[t].id}, {"log_prob", of_text}, {"tokens", tokens_of_text}});
    log_prob += of_text;
    tokens += tokens_of_text;
    // As lm-eval-harness counts: pieces between white space, with an empty one at a blank end.
    const std::string_view kept = stripped(text);
    words += static_cast<double>(split_words(text).size()) + (kept.data() != text.data() ? 1 : 0) +
             (kept.data() + kept.size() != text.data() + text.size() ? 1 : 0);
    bytes += static_cast<double>(text.size());
  }
  if (score.judged == 0) return score;
  score.score = std::exp(-log_prob / words);
  score.others["byte_perplexity"] = std::exp(-log_prob / bytes);
  score.others["bits_per_byte"] = -log_prob / bytes / std::log(2.0);
  score.others["token_perplexity"] = std::exp(-log_prob / tokens);
  return score;
}

}  // namespace floe::eval
