// Templates, requests, windows and judgement of tasks; samples of files that are not as they should
// be.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "floe/core/error.h"
#include "floe/eval/tasks/judge.h"
#include "floe/eval/tasks/prompts.h"
#include "floe/eval/tasks/results.h"
#include "floe/io/file/file.h"

namespace floe::eval::eval_tasks_test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "floe-eval-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

// What it throws says this.
template <class Call>
void expect_refusal(const Call& call, const std::string& words) {
  try {
    call();
    FAIL() << "nothing was refused; expected: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TaskConfig memes() {
  TaskConfig task;
  task.name = "memes";
  task.metric = "roc_auc";
  task.data.layout = "hateful_memes";
  task.prompt = "<image>{text}?";
  task.answer = "{label}.";
  task.separator = "";
  task.candidates = {"no", "yes"};
  return task;
}

Sample sample(int id, std::int64_t label) {
  Sample made;
  made.id = id;
  made.images = {"picture" + std::to_string(id)};
  made.fields = {{"text", "t" + std::to_string(id)}, {"label", label == 1 ? "yes" : "no"}};
  made.label = label;
  return made;
}

TEST(Expanded, PutsFieldsIn) {
  const std::map<std::string, std::string> fields{{"a", "{b}"}, {"b", "2"}};
  EXPECT_EQ(expand_template("{a}-{b}{{c}}", fields), "{b}-2{c}");
  expect_refusal([&] { expand_template("{c}", fields); }, "samples have a, b");
  expect_refusal([&] { expand_template("{a", fields); }, "without its }");
}

TEST(Requests, HaveContextAndPictures) {
  TaskConfig task = memes();
  const std::vector<Sample> tests{sample(0, 0)}, train{sample(5, 1), sample(6, 0)};
  const TrialDraw draw{{0}, {{1, 0}}};
  const auto few = requests_of(task, tests, train, draw, 2);
  EXPECT_EQ(few[0]["prompt"], "<image>t6?no.<image>t5?yes.<image>t0?");
  EXPECT_EQ(few[0]["images"], Json({"picture6", "picture5", "picture0"}));
  EXPECT_EQ(few[0]["candidates"], Json({"no", "yes"}));
  const auto none = requests_of(task, tests, train, draw, 0);
  EXPECT_EQ(none[0]["prompt"], "t6?no.t5?yes.<image>t0?");
  EXPECT_EQ(none[0]["images"], Json::array({"picture6"}));  // as OpenFlamingo has it
  task.rules = "corrected";
  EXPECT_EQ(requests_of(task, tests, train, draw, 0)[0]["images"], Json::array({"picture0"}));
  EXPECT_EQ(context_size(task, 0), 2);
  EXPECT_EQ(context_size(task, 4), 4);
}

TEST(CutAnswer, IsOpenFlamingos) {
  TaskConfig task;
  task.stop = {"Question", "Answer", "Short", ", "};
  const auto golden = Json::parse(read_text(
      std::string(std::getenv("FLOE_SOURCE_DIR")) + "/tests/eval/goldens/vqa.json", 1 << 24));
  for (const auto& one : golden["cut"])
    EXPECT_EQ(cut_answer(task, one["text"].get<std::string>()), one["answer"].get<std::string>());
  task.remove = {"\""};
  EXPECT_EQ(cut_answer(task, "a \"b\" Short"), "a b ");
}

TEST(Windows, PredictEveryTokenOnce) {
  const auto windows = windows_of({1, 2, 3, 4, 5, 6, 7}, 0, 3);
  ASSERT_EQ(windows.size(), 3);
  EXPECT_EQ(windows[0].context, (Ids{0}));
  EXPECT_EQ(windows[0].tokens, (Ids{1, 2, 3}));
  EXPECT_EQ(windows[1].context, (Ids{3}));
  EXPECT_EQ(windows[1].tokens, (Ids{4, 5, 6}));
  EXPECT_EQ(windows[2].context, (Ids{4, 5, 6}));  // the last reaches back
  EXPECT_EQ(windows[2].tokens, (Ids{7}));
  EXPECT_TRUE(windows_of({}, 0, 3).empty());
}

TEST(Judge, LeavesOutWhatHasNoAnswer) {
  const TaskConfig task = memes();
  const std::vector<Sample> tests{sample(0, 0), sample(1, 1), sample(2, 1), sample(3, 0)};
  const TrialDraw draw{{3, 2, 1, 0}, {{}, {}, {}, {}}};
  const auto scored = [](double no, double yes) {
    return Json{{"log_probs", {no, yes}}, {"log_probs_per_token", {no, yes}}};
  };
  const std::vector<Json> records{scored(-1, -2),
                                  scored(-1, -3),
                                  {{"error", "no picture"}, {"reason", "image"}},
                                  scored(-1, -4)};
  const TrialScore score = judge_trial(task, tests, draw, records);
  EXPECT_EQ(score.asked, 4);
  EXPECT_EQ(score.judged, 3);
  EXPECT_EQ(score.problems.at("image"), 1);
  EXPECT_EQ(score.first_problems, std::vector<std::string>{"no picture"});
  EXPECT_NEAR(score.score, 0.5, 1e-12);  // sample 2 is above 0 and below 3
  EXPECT_NEAR(score.others.at("accuracy"), 2.0 / 3, 1e-12);
  EXPECT_EQ(score.answers.size(), 3);
}

// As lm-eval-harness counts: acc by the sum, acc_norm per character, acc_bytes per byte.
TEST(Judge, LikelyByTokenSumCharacterAndByte) {
  TaskConfig task;
  task.metric = "accuracy";
  std::vector<Sample> tests{sample(0, 0), sample(1, 1)};
  for (Sample& one : tests) one.choices = {"\u65e5\u672c", "abcd"};  // 2 characters, 6 bytes
  const TrialDraw draw{{0, 1}, {{}, {}}};
  const Json record{{"log_probs", {-6.0, -8.0}}, {"log_probs_per_token", {-6.0, -2.0}}};
  const Json other{{"log_probs", {-6.0, -3.0}}, {"log_probs_per_token", {-6.0, -2.0}}};
  const TrialScore score = judge_trial(task, tests, draw, {record, other});
  EXPECT_NEAR(score.score, 0.5, 1e-12);
  EXPECT_NEAR(score.others.at("accuracy_by_sum"), 1.0, 1e-12);
  EXPECT_NEAR(score.others.at("accuracy_by_characters"), 0.5, 1e-12);
  EXPECT_NEAR(score.others.at("accuracy_by_bytes"), 1.0, 1e-12);
}

TEST(Judge, PerplexityPerWordByteAndToken) {
  Sample text, broken, empty;
  text.fields["text"] = "two words";
  broken.fields["text"] = "x y";
  empty.fields["text"] = "";
  const std::vector<Json> records{{{"log_probs", {-2}}, {"tokens", {3}}},
                                  {{"log_probs", {-1}}, {"tokens", {1}}},
                                  {{"error", "too long"}, {"reason", "prompt"}}};
  const TrialScore score = judge_perplexity({text, broken, empty}, {2, 1, 0}, records);
  EXPECT_EQ(score.judged, 1);
  EXPECT_EQ(score.problems.at("prompt"), 1);
  EXPECT_EQ(score.problems.at("text"), 1);
  EXPECT_NEAR(score.score, std::exp(1.5), 1e-12);
  EXPECT_NEAR(score.others.at("token_perplexity"), std::exp(0.75), 1e-12);
  EXPECT_NEAR(score.others.at("byte_perplexity"), std::exp(3.0 / 9), 1e-12);
}

TEST(Samples, NameWhatIsWrong) {
  const Folder folder;
  TaskConfig task = memes();
  expect_refusal([&] { read_samples(task, Split::test); }, "data.test.annotations is needed");
  task.data.test = {.images = "/pictures", .annotations = folder.write("a.jsonl", R"({"id": 1}
)")};
  expect_refusal([&] { read_samples(task, Split::test); }, "line 1 has no \"img\"");
  task.data.test.annotations = folder.write("f.jsonl", "\n{\"id\": 1,\n");
  expect_refusal([&] { read_samples(task, Split::test); }, "line 2 is not valid JSON");
  task.data.test.annotations =
      folder.write("b.jsonl", R"({"id": 1, "img": "img/01.png", "label": 1, "text": "t"}

{"id": 2, "img": "02.png", "label": 0, "text": "u"}
)");
  expect_refusal([&] { read_samples(task, Split::train); }, "data.train.annotations is needed");
  task.data.train.annotations = task.data.test.annotations;
  const auto samples = read_samples(task, Split::train);  // with the pictures of test
  ASSERT_EQ(samples.size(), 2);
  EXPECT_EQ(samples[0].images[0], "/pictures/01.png");
  EXPECT_EQ(samples[0].fields.at("label"), "yes");
  EXPECT_EQ(samples[1].label, 0);
  task.data.test.annotations =
      folder.write("d.jsonl", R"({"id": 1, "img": "01.png", "label": "1", "text": "t"})");
  expect_refusal([&] { read_samples(task, Split::test); }, "must be 0 or 1");
  task.data.test.annotations = folder.write("c.jsonl", "\n");
  expect_refusal([&] { read_samples(task, Split::test); }, "no test samples");

  TaskConfig vqa;
  vqa.metric = "vqa_accuracy";
  vqa.data.layout = "vqav2";
  vqa.data.test = {
      .images = "/data/val2014/",
      .questions = folder.write(
          "q.json", R"({"questions": [{"question_id": 9, "image_id": 42, "question": "Why?"}]})"),
      .annotations = folder.write("e.json", R"({"annotations": []})")};
  expect_refusal([&] { read_samples(vqa, Split::test); }, "has no answers");
  vqa.data.test.annotations = "";  // a test set whose answers nobody knows
  EXPECT_EQ(read_samples(vqa, Split::test)[0].images[0],
            "/data/val2014/COCO_val2014_000000000042.jpg");
  vqa.data.test.images = "/data/pictures";
  expect_refusal([&] { read_samples(vqa, Split::test); }, "must be named train2014");
}

TEST(Results, AreJsonWithoutNaN) {
  TaskResult result{.model = "m", .checkpoint = "c", .task = "t", .metric = "cider", .shots = 4};
  TrialScore first, second;
  first.score = 3;
  first.problems["image"] = 2;
  result.trials = {{42, first}, {43, second}};
  const auto json = results_json({result})["results"][0];
  EXPECT_EQ(json["mean"], 3);
  EXPECT_TRUE(json["interval"].is_null());  // one trial with a score
  EXPECT_TRUE(json["trials"][1]["score"].is_null());
  EXPECT_TRUE(json["step"].is_null());
  TaskResult later = result;
  later.checkpoint = "d";
  later.step = 7;
  const std::string table = results_table({later, result});
  EXPECT_NE(table.find("step 7"), std::string::npos) << table;
  EXPECT_NE(table.find("image 2"), std::string::npos) << table;
}

TEST(Results, OfEarlierCommandsStay) {
  const auto result = [](const std::string& task, std::int64_t shots, double score) {
    TaskResult made{.model = "m", .checkpoint = "c", .task = task, .metric = "cider"};
    made.shots = shots;
    TrialScore trial;
    trial.score = score;
    made.trials = {{42, trial}};
    return made;
  };
  const auto before = results_json({result("a", 0, 1), result("a", 4, 2), result("b", 0, 3)});
  const auto found = results_json({result("a", 4, 5)});
  std::vector<std::pair<std::string, double>> kept;
  const auto merged = merged_results(before.dump(), found);
  for (const auto& one : merged["results"])
    kept.emplace_back(one["task"].get<std::string>() + one["shots"].dump(), one["mean"]);
  EXPECT_EQ(kept, (std::vector<std::pair<std::string, double>>{{"a0", 1}, {"b0", 3}, {"a4", 5}}));
  for (const char* damaged : {"", "{", "[]", R"({"results": [7, "x"]})"})
    EXPECT_EQ(merged_results(damaged, found), found) << damaged;
}

TEST(CheckPrompts, SaysWhatTheModelIsNotNeededFor) {
  TaskData data{memes(), {sample(0, 0)}, {sample(1, 1), sample(2, 0)}};
  data.task.shots = {0, 2};
  check_prompts(data);
  data.task.shots = {2, 3};
  expect_refusal([&] { check_prompts(data); }, "cannot be drawn from 2");
  data.task.context = "rices";
  expect_refusal([&] { check_prompts(data); }, "cannot be drawn from 2");
  data.task.shots = {0};
  data.task.answer = "{nope}";
  expect_refusal([&] { check_prompts(data); }, "{nope}");
}

}  // namespace
}  // namespace floe::eval::eval_tasks_test
