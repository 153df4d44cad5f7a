// Instructions: lines of JSON, {"prompt": "…", "response": "…"}. A model reads the prompt and
// learns the response.
#include "floe/data/python/json.h"
#include "floe/data/python/str.h"
#include "floe/data/sources/sample_text.h"
#include "floe/data/sources/source_description.h"
#include "floe/data/sources/text_files.h"

namespace floe::data {

struct InstructConfig {
  std::string files;            // written like `shards`: .jsonl (also compressed) or tars of .json
  std::int64_t batch_size = 8;  // samples
  double weight = 1.0;          // of its loss
  std::optional<std::int64_t> num_samples;  // in an epoch, over all ranks; null: no end
  std::int64_t max_tokens = 2048;
};

void describe(config::Schema<InstructConfig>& s) {
  using C = InstructConfig;
  s.field(
      "files", &C::files,
      "Instructions: .jsonl with the fields 'prompt' and 'response' (also .gz, .zst, …) or tars "
      "of .json, written as shards");
  s.field("batch_size", &C::batch_size, "Samples of a batch on each rank")
      .at_least(1)
      .at_most(1'000'000);
  s.field("weight", &C::weight, "What the loss of this source is multiplied with").at_least(0);
  s.field("num_samples", &C::num_samples,
          "Samples of an epoch over all ranks; null: the files repeat without end")
      .at_least(1);
  s.field("max_tokens", &C::max_tokens, "Tokens after which a sample is cut")
      .at_least(2)
      .at_most(100'000'000);
}

namespace {

// The prompt fills the sample, so that nothing would be learned.
constexpr std::string_view kLongPrompt = "long_prompt";

std::string_view text_of(const Json& line, const char* key) {
  const Json* found = line.find(key);
  keep_if(found && found->is(Json::Kind::string), reason::kBadDocument, "the line has no string '",
          key, "'");
  return found->text;
}

// BOS (if the tokenizer adds one), prompt, response, EOS; labels from the response on.
class InstructMaker : public SampleMaker {
 public:
  InstructMaker(const token::Tokenizer& tokenizer, std::int64_t max_tokens)
      : tokenizer_(tokenizer),
        eos_(eos_id(tokenizer, "data.instruct")),
        max_tokens_(static_cast<std::size_t>(max_tokens)) {}

  Outcome make(const RawSample& raw) const override {
    return sample_or_dropped(raw, [&] { return sample_of(raw); });
  }

 private:
  Sample sample_of(const RawSample& raw) const {
    const Field* field = raw.find("jsonl");
    if (!field) field = raw.find("json");
    keep_if(field, reason::kNoDocument, "it has no .json");
    std::optional<PythonJson> line;
    or_drop(reason::kBadJson, [&] { return &line.emplace(field->bytes); });
    keep_if(line->root().is(Json::Kind::object), reason::kBadDocument, "the line is no object");
    const std::string_view prompt = text_of(line->root(), "prompt");
    const std::string_view response = text_of(line->root(), "response");
    keep_if(!response.empty(), reason::kEmptyText, "the response is empty");

    Sample sample;
    or_drop(reason::kBadText, [&] {
      tokenizer_.encode(prompt, sample.ids);
      return true;
    });
    const std::size_t learned_from = sample.ids.size();
    keep_if(learned_from < max_tokens_, kLongPrompt, "the prompt has ", learned_from,
            " tokens, and a sample is cut after ", max_tokens_);
    or_drop(reason::kBadText, [&] {
      tokenizer_.encode(response, sample.ids, /*add_special=*/false);
      return true;
    });
    sample.ids.push_back(eos_);
    if (sample.ids.size() > max_tokens_) sample.ids.resize(max_tokens_);
    sample.labels.assign(sample.ids.size(), kNoLabel);
    for (std::size_t i = learned_from; i < sample.ids.size(); ++i) sample.labels[i] = sample.ids[i];
    return sample;
  }

  const token::Tokenizer& tokenizer_;
  std::int32_t eos_;
  std::size_t max_tokens_;
};

}  // namespace

std::unique_ptr<DataSource> instruct_source() {
  using C = InstructConfig;
  return make_source<C>({.info = {.id = "instruct",
                                  .help = "Prompts with responses",
                                  .files_key = "files",
                                  .per_epoch_key = "num_samples"},
                         .files = &C::files,
                         .weight = &C::weight,
                         .per_batch = &C::batch_size,
                         .per_epoch = &C::num_samples,
                         .rules = [](const C& c, const MakerContext& context) {
                           return SourceRules{
                               .maker = std::make_shared<InstructMaker>(
                                   context.tokenizer, context.cut_after(c.max_tokens)),
                               .open = open_text,
                               .max_tokens = c.max_tokens};
                         }});
}

}  // namespace floe::data
