#include "floe/eval/tasks/samples.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <sstream>
#include <utility>

#include "floe/core/error.h"
#include "floe/eval/metrics/words.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"

namespace floe::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kMostAnnotationBytes = std::int64_t{1} << 34;

// The files of a split, and what to say when one is missing. Pictures of both splits may share a
// folder and captions a file; answers of contexts are never taken from what is asked in silence.
struct Files {
  const TaskConfig& task;
  Split split;

  std::string given(const char* key, std::string SplitConfig::*member, bool shared) const {
    const TaskDataConfig& data = task.data;
    std::string path = (split == Split::train ? data.train : data.test).*member;
    if (path.empty() && shared) path = data.test.*member;
    require<ConfigError>(!path.empty(), "task '", task.name, "': data.",
                         split == Split::train ? "train." : "test.", key,
                         " is needed for the layout '", data.layout, "'");
    return path;
  }
  std::string images() const { return given("images", &SplitConfig::images, true); }
  std::string questions() const { return given("questions", &SplitConfig::questions, false); }
  std::string annotations() const {
    const bool has_splits = task.data.layout == "coco" || task.data.layout == "flickr";
    return given("annotations", &SplitConfig::annotations, has_splits);
  }
};

const Json& member(const Json& object, const char* key, const std::string& where) {
  require<DataError>(object.is_object() && object.contains(key), where, " has no ", quoted(key));
  return object[key];
}
std::string text_member(const Json& object, const char* key, const std::string& where) {
  const Json& value = member(object, key, where);
  require<DataError>(value.is_string(), where, ": ", quoted(key), " is ", shown(value),
                     ", but must be text");
  return value.get<std::string>();
}
const Json& list_member(const Json& object, const char* key, const std::string& where) {
  const Json& value = member(object, key, where);
  require<DataError>(value.is_array(), where, ": ", quoted(key), " is ", shown(value),
                     ", but must be a list");
  return value;
}

// 7 and "7" are the same id: files of one data set do not always agree.
std::string id_text(const Json& id) { return id.is_string() ? id.get<std::string>() : id.dump(); }

Json read_json(const std::string& path) {
  return parse_json(read_text(path, kMostAnnotationBytes), path);
}

void each_line(const std::string& path,
               const std::function<void(const Json&, const std::string& where)>& take) {
  std::istringstream lines(read_text(path, kMostAnnotationBytes));
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (stripped(line).empty()) continue;
    const std::string where = str("'", path, "' line ", number);
    Json entry;
    try {
      entry = parse_json(line, path);
    } catch (const Error&) {
      throw DataError(str(where, " is not valid JSON"));
    }
    take(entry, where);
  }
}

using References = std::map<std::string, std::vector<std::string>>;

References read_references(const std::string& path) {
  References found;
  const Json file = read_json(path);
  const std::string where = str("'", path, "'");
  for (const Json& entry : list_member(file, "annotations", where))
    found[id_text(member(entry, "image_id", where))].push_back(
        text_member(entry, "caption", where));
  return found;
}

std::vector<Sample> read_captions(const Files& files) {
  const bool coco = files.task.data.layout == "coco";
  const std::string path = files.annotations(), images = files.images();
  const Json file = read_json(path);
  const bool test = files.split == Split::test;
  References references;
  const bool own_references = test && !files.task.data.references.empty();
  if (own_references) references = read_references(files.task.data.references);
  std::vector<Sample> samples;
  for (const Json& entry : list_member(file, "images", str("'", path, "'"))) {
    const std::string where = str("'", path, "' image ", samples.size());
    if (text_member(entry, "split", where) != (test ? "test" : "train")) continue;
    Sample& sample = samples.emplace_back();
    const std::string name = text_member(entry, "filename", where);
    std::string folder = images;
    if (coco)  // pictures of both folders are in both splits
      folder = text_member(entry, "filepath", where) == "train2014"
                   ? Files{files.task, Split::train}.images()
                   : files.task.data.test.images;
    sample.images = {(fs::path(folder) / name).string()};
    sample.id = coco ? member(entry, "cocoid", where) : Json(name.substr(0, name.find('.')));
    for (const Json& sentence : list_member(entry, "sentences", where))
      sample.references.push_back(text_member(sentence, "raw", where));
    require<DataError>(!sample.references.empty(), where, " has no sentences");
    sample.fields["caption"] = std::string(stripped(sample.references[0]));
    if (!own_references) continue;
    const auto found = references.find(id_text(sample.id));
    require<DataError>(found != references.end(), "'", files.task.data.references,
                       "' has no captions of image ", id_text(sample.id));
    sample.references = found->second;
  }
  return samples;
}

std::string coco_name(const std::string& folder, const Json& id, const std::string& where) {
  std::string split = fs::path(folder).filename().string();
  if (split.empty()) split = fs::path(folder).parent_path().filename().string();
  require<ConfigError>(split == "train2014" || split == "val2014" || split == "test2015",
                       "the folder of pictures '", folder,
                       "' must be named train2014, val2014 or test2015: names of COCO's pictures "
                       "begin with that");
  require<DataError>(id.is_number_integer(), where, ": the image_id is ", shown(id),
                     ", but must be a number");
  std::ostringstream name;
  name << "COCO_" << split << "_" << std::setw(12) << std::setfill('0') << id.get<std::int64_t>()
       << ".jpg";
  return name.str();
}

std::vector<Sample> read_questions(const Files& files) {
  const std::string& layout = files.task.data.layout;
  const std::string path = files.questions(), folder = files.images();
  const bool judged = files.split == Split::train || !files.task.data.test.annotations.empty();
  std::map<std::string, std::vector<GivenAnswer>> answers;
  if (judged) {
    const std::string annotations = files.annotations(), where = str("'", annotations, "'");
    const Json file = read_json(annotations);
    for (const Json& entry : list_member(file, "annotations", where)) {
      auto& of_question = answers[id_text(member(entry, "question_id", where))];
      for (Json answer : list_member(entry, "answers", where)) {
        const std::string text = text_member(answer, "answer", where);
        answer.erase("answer");
        of_question.push_back({text, answer.dump()});
      }
    }
  }
  std::vector<Sample> samples;
  const Json file = read_json(path);
  for (const Json& entry : list_member(file, "questions", str("'", path, "'"))) {
    const std::string where = str("'", path, "' question ", samples.size());
    Sample& sample = samples.emplace_back();
    sample.id = member(entry, "question_id", where);
    sample.fields["question"] = text_member(entry, "question", where);
    const Json& image = member(entry, "image_id", where);
    const std::string name = layout == "textvqa"  ? id_text(image) + ".jpg"
                             : layout == "vizwiz" ? id_text(image)
                                                  : coco_name(folder, image, where);
    sample.images = {(fs::path(folder) / name).string()};
    if (!judged) continue;
    const auto found = answers.find(id_text(sample.id));
    require<DataError>(found != answers.end() && !found->second.empty(), where, " (",
                       id_text(sample.id), ") has no answers among the annotations");
    sample.answers = found->second;
    sample.fields["answer"] = sample.answers[0].text;
  }
  return samples;
}

std::vector<Sample> read_memes(const Files& files) {
  const auto& classes = files.task.candidates;
  std::vector<Sample> samples;
  each_line(files.annotations(), [&](const Json& entry, const std::string& where) {
    Sample& sample = samples.emplace_back();
    sample.id = member(entry, "id", where);
    sample.images = {
        (fs::path(files.images()) / fs::path(text_member(entry, "img", where)).filename())
            .string()};
    sample.fields["text"] = text_member(entry, "text", where);
    const Json& label = member(entry, "label", where);
    require<DataError>(label == 0 || label == 1, where, ": \"label\" is ", shown(label),
                       ", but must be 0 or 1");
    sample.label = label == 1 ? 1 : 0;
    require<ConfigError>(classes.size() == 2, "task '", files.task.name,
                         "': candidates must be the classes of label 0 and 1");
    sample.fields["label"] = classes[static_cast<std::size_t>(sample.label)];
  });
  return samples;
}

std::vector<std::string> texts_of(const Json& entry, const char* key, const std::string& where) {
  std::vector<std::string> texts;
  if (!entry.contains(key)) return texts;
  for (const Json& text : list_member(entry, key, where)) {
    require<DataError>(text.is_string(), where, ": ", quoted(key), " must be a list of texts");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

std::vector<Sample> read_lines(const Files& files) {
  const std::string path = files.annotations();
  const SplitConfig& split =
      files.split == Split::train ? files.task.data.train : files.task.data.test;
  const fs::path folder =
      split.images.empty() ? fs::path(path).parent_path() : fs::path(split.images);
  std::vector<Sample> samples;
  each_line(path, [&](const Json& entry, const std::string& where) {
    require<DataError>(entry.is_object(), where, " is no JSON object");
    Sample& sample = samples.emplace_back();
    sample.id = entry.value("id", Json(samples.size() - 1));
    for (const std::string& image : texts_of(entry, "images", where))
      sample.images.push_back((folder / image).string());
    sample.references = texts_of(entry, "references", where);
    sample.choices = texts_of(entry, "choices", where);
    for (const std::string& answer : texts_of(entry, "answers", where))
      sample.answers.push_back({answer, str(sample.answers.size())});
    for (const auto& [key, value] : entry.items())
      if (value.is_string()) sample.fields[key] = value.get<std::string>();
    if (!sample.references.empty()) sample.fields.emplace("caption", sample.references[0]);
    if (!sample.answers.empty()) sample.fields.emplace("answer", sample.answers[0].text);
    if (!entry.contains("label")) return;
    const auto& names = sample.choices.empty() ? files.task.candidates : sample.choices;
    const Json& label = entry["label"];
    sample.label = label.is_number_integer() ? label.get<std::int64_t>() : -1;
    require<DataError>(sample.label >= 0 && sample.label < std::ssize(names), where,
                       ": \"label\" is ", shown(label), ", but must be a number below ",
                       names.size());
    sample.fields["label"] = names[static_cast<std::size_t>(sample.label)];
  });
  return samples;
}

std::vector<Sample> read_documents(const Files& files) {
  const std::string path = files.annotations();
  if (path.ends_with(".jsonl")) {
    std::vector<Sample> samples = read_lines(files);
    for (const Sample& sample : samples)
      require<DataError>(sample.fields.contains("text"), "'", path, "': sample ",
                         id_text(sample.id), " has no \"text\"");
    return samples;
  }
  Sample document;
  document.id = fs::path(path).filename().string();
  document.fields["text"] = read_text(path, kMostAnnotationBytes);
  return {document};
}

using Reader = std::vector<Sample> (*)(const Files& files);

const std::vector<std::pair<std::string, Reader>>& readers() {
  static const std::vector<std::pair<std::string, Reader>> table{
      {"coco", read_captions},       {"flickr", read_captions},   {"vqav2", read_questions},
      {"ok_vqa", read_questions},    {"textvqa", read_questions}, {"vizwiz", read_questions},
      {"hateful_memes", read_memes}, {"jsonl", read_lines},       {"text", read_documents}};
  return table;
}

}  // namespace

const std::vector<std::string>& layouts() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, reader] : readers()) all.push_back(name);
    return all;
  }();
  return names;
}

std::vector<Sample> read_samples(const TaskConfig& task, Split split) {
  for (const auto& [name, reader] : readers())
    if (name == task.data.layout) {
      std::vector<Sample> samples = reader({task, split});
      require<DataError>(split == Split::train || !samples.empty(), "task '", task.name,
                         "': there are no test samples in its files");
      return samples;
    }
  throw ConfigError(str("there is no layout '", task.data.layout, "'"));
}

TaskData read_task_data(TaskConfig task) {
  TaskData data;
  data.tests = read_samples(task, Split::test);
  const bool contexts = metric_of(task) != Metric::perplexity &&
                        std::any_of(task.shots.begin(), task.shots.end(), [&](std::int64_t shots) {
                          return context_size(task, shots) > 0;
                        });
  if (contexts) data.train = read_samples(task, Split::train);
  data.task = std::move(task);
  return data;
}

}  // namespace floe::eval
