#include "floe/data/sources/text.h"

#include "floe/data/python/json.h"
#include "floe/data/python/str.h"
#include "floe/data/sources/sample_text.h"
#include "floe/data/sources/source_description.h"
#include "floe/data/sources/text_files.h"

namespace floe::data {
namespace {

std::string text_of_line(const Bytes& line) {
  std::optional<PythonJson> document;
  or_drop(reason::kBadJson, [&] { return &document.emplace(line); });
  const Json* text = document->root().find("text");
  keep_if(text && text->is(Json::Kind::string), reason::kBadDocument,
          "the line is no object with a string 'text'");
  return std::string(text->text);
}

std::string text_of(const RawSample& raw) {
  if (const Field* line = raw.find("jsonl")) return text_of_line(line->bytes);
  const Field* text = raw.find("txt");
  keep_if(text, reason::kNoDocument, "it has no .txt");
  return std::string(as_text(text->bytes));
}

}  // namespace

TextMaker::TextMaker(const token::Tokenizer& tokenizer)
    : tokenizer_(tokenizer), eos_(eos_id(tokenizer, "data.text")) {}

Outcome TextMaker::make(const RawSample& raw) const {
  return sample_or_dropped(raw, [&] {
    const std::string text = text_of(raw);
    keep_if(!text.empty(), reason::kEmptyText, "");
    Sample sample;
    sample.ids = or_drop(reason::kBadText, [&] { return tokenizer_.encode(text); });
    sample.ids.push_back(eos_);
    sample.labels = sample.ids;
    return sample;
  });
}

void describe(config::Schema<TextConfig>& s) {
  using C = TextConfig;
  s.field(
      "files", &C::files,
      "Text: .jsonl with a field 'text' (also .gz, .zst, …) or tars of .txt, written as shards");
  s.field("tokens", &C::tokens, "Tokens of a batch on each rank").at_least(2).at_most(100'000'000);
  s.field("weight", &C::weight, "What the loss of this source is multiplied with").at_least(0);
  s.field("num_tokens", &C::num_tokens,
          "Tokens of an epoch over all ranks; null: the files repeat without end")
      .at_least(1);
}

std::unique_ptr<DataSource> text_source() {
  using C = TextConfig;
  return make_source<C>({.info = {.id = "text",
                                  .help = "Plain text",
                                  .files_key = "files",
                                  .per_epoch_key = "num_tokens",
                                  .counts_tokens = true},
                         .files = &C::files,
                         .weight = &C::weight,
                         .per_batch = &C::tokens,
                         .per_epoch = &C::num_tokens,
                         .rules = [](const C&, const MakerContext& context) {
                           return SourceRules{
                               .maker = std::make_shared<TextMaker>(context.tokenizer),
                               .open = open_text};
                         }});
}

}  // namespace floe::data
