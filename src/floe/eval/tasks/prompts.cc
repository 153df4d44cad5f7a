#include "floe/eval/tasks/prompts.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/eval/metrics/words.h"

namespace floe::eval {
namespace {

constexpr std::string_view kImageMarker = "<image>";

std::string shown_text(const TaskConfig& task, const Sample& sample) {
  return expand_template(task.prompt, sample.fields) + expand_template(task.answer, sample.fields) +
         task.separator;
}

}  // namespace

const std::vector<std::string>& classes_of(const TaskConfig& task, const Sample& sample) {
  return sample.choices.empty() ? task.candidates : sample.choices;
}

std::vector<nlohmann::json> requests_of(const TaskConfig& task, const std::vector<Sample>& tests,
                                        const std::vector<Sample>& train, const TrialDraw& draw,
                                        std::int64_t shots) {
  std::vector<nlohmann::json> requests;
  const bool classes = asks_classes(metric_of(task));
  for (std::size_t i = 0; i < draw.asked.size(); ++i) {
    const Sample& asked = tests[draw.asked[i]];
    std::string context;
    std::vector<std::string> images, of_context;
    for (const std::size_t number : draw.context[i]) {
      const Sample& sample = train[number];
      context += shown_text(task, sample);
      of_context.insert(of_context.end(), sample.images.begin(), sample.images.end());
    }
    if (shots > 0)
      images = of_context;
    else
      context = replaced(context, kImageMarker, "");
    images.insert(images.end(), asked.images.begin(), asked.images.end());
    // OpenFlamingo hands the pictures of the context to the model although their marks are gone, so
    // that the only mark left, that of the picture in question, meets the first of them.
    if (shots == 0 && classes && task.rules == "openflamingo" &&
        of_context.size() >= asked.images.size())
      images.assign(of_context.begin(),
                    of_context.begin() + static_cast<std::ptrdiff_t>(asked.images.size()));
    nlohmann::json request{{"prompt", context + expand_template(task.prompt, asked.fields)},
                           {"id", asked.id}};
    if (!images.empty()) request["images"] = images;
    if (classes) {
      request["candidates"] = nlohmann::json::array();
      for (const std::string& name : classes_of(task, asked)) {
        auto fields = asked.fields;
        fields["choice"] = name;
        request["candidates"].push_back(expand_template(task.candidate, fields));
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void check_prompts(const TaskData& data) {
  const TaskConfig& task = data.task;
  if (metric_of(task) == Metric::perplexity) return;
  for (const std::int64_t shots : task.shots) {
    const bool drawn = task.context == "random";
    const TrialDraw draw = draw_trial(
        {.seed = 0,
         .tests = 1,
         .train = data.train.size(),
         .query_set = drawn ? static_cast<std::size_t>(task.query_set) : data.train.size(),
         .context = context_size(task, shots)});
    requests_of(task, data.tests, data.train, draw, shots);
  }
}

std::string cut_answer(const TaskConfig& task, const std::string& text) {
  std::size_t end = text.size();
  for (const std::string& stop : task.stop) end = std::min(end, text.find(stop));
  std::string answer = text.substr(0, end);
  for (const std::string& removed : task.remove) answer = replaced(answer, removed, "");
  return answer;
}

std::vector<Window> windows_of(const std::vector<std::int64_t>& ids, std::int64_t prefix,
                               std::int64_t length) {
  require(length >= 1, "a window needs at least one token");
  std::vector<std::int64_t> all{prefix};
  all.insert(all.end(), ids.begin(), ids.end());
  std::vector<Window> windows;
  // all[t] is predicted from all[first .. t - 1].
  for (std::int64_t done = 1; done < std::ssize(all);) {
    const std::int64_t end = std::min(std::ssize(all), done + length);
    const std::int64_t first = std::max<std::int64_t>(0, end - 1 - length);
    const auto at = [&](std::int64_t place) { return all.begin() + place; };
    windows.push_back({{at(first), at(done)}, {at(done), at(end)}});
    done = end;
  }
  return windows;
}

}  // namespace floe::eval
