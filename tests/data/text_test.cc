// Plain text: lines of JSON or tars of .txt, packed to a number of tokens.
#include "floe/data/sources/text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "floe/data/sources/text_files.h"
#include "tests/data/loader_corpus.h"

namespace floe::data::text_test {
namespace {

std::string document(int file, int line) {
  std::string text = "document " + std::to_string(line) + " of file " + std::to_string(file);
  for (int i = 0; i < (file * 7 + line * 5) % 23; ++i) text += " and more";
  return text;
}

std::string jsonl(int file, int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += nlohmann::json{{"text", document(file, i)}, {"id", i}}.dump() + "\n";
  return text;
}

std::string gzipped(const std::string& path) {
  const std::string command = "gzip -k '" + path + "'";
  // NOLINTNEXTLINE(bugprone-command-processor): the path is the test's own
  require(std::system(command.c_str()) == 0, command);
  return path + ".gz";
}

DataConfig text_config(const std::string& files, std::int64_t tokens) {
  DataConfig config;
  config.block<TextConfig>().emplace();
  config.block<TextConfig>()->files = files;
  config.block<TextConfig>()->tokens = tokens;
  config.threads = 2;
  config.shuffle = {1, 1, {kMiB}};
  return config;
}

std::vector<std::int64_t> tokens_of(const std::string& text) {
  const auto ids = reader().tokenizer->encode(text);
  std::vector<std::int64_t> all(ids.begin(), ids.end());
  all.push_back(*reader().tokenizer->eos_id());
  return all;
}

TEST(TextLines, GivesLinesAsMembers) {
  test::Scratch folder;
  const std::string long_line(700'000, 'x');
  const std::string path = folder.write("a.jsonl", "one\n\n  \t\r\n" + long_line + "\nlast");
  for (const std::string& where : {path, gzipped(path), "pipe:cat '" + path + "'"}) {
    const auto lines = open_text(where, nullptr);
    TarEntry entry;
    std::vector<std::pair<std::string, std::size_t>> seen;
    while (lines->next(entry)) seen.emplace_back(entry.name, entry.data.size());
    EXPECT_EQ(seen, (std::vector<std::pair<std::string, std::size_t>>{
                        {"1.jsonl", 3}, {"4.jsonl", 700'000}, {"5.jsonl", 4}}));
    EXPECT_FALSE(lines->next(entry));
  }
  EXPECT_THROW(open_text(folder.path("none.jsonl"), nullptr), DataError);
  const std::string zipped = folder.read("a.jsonl.gz");
  const std::string cut = folder.write("cut.jsonl.gz", zipped.substr(0, zipped.size() - 9));
  const auto lines = open_text(cut, nullptr);
  TarEntry entry;
  EXPECT_THROW(while (lines->next(entry)){}, DataError);
  EXPECT_FALSE(lines->next(entry));
}

TEST(TextMaker, DropsWhatIsNoDocument) {
  const TextMaker maker(*reader().tokenizer);
  const auto reason_of = [&](const std::string& suffix, const std::string& bytes) {
    RawSample raw;
    raw.fields.push_back({suffix, {}});
    for (const char c : bytes) raw.fields[0].bytes.push_back(static_cast<std::byte>(c));
    const Outcome outcome = maker.make(raw);
    const auto* dropped = std::get_if<Dropped>(&outcome);
    return dropped ? dropped->reason : "";
  };
  EXPECT_EQ(reason_of("jsonl", R"({"text": "yes"})"), "");
  EXPECT_EQ(reason_of("txt", "yes"), "");
  EXPECT_EQ(reason_of("jsonl", R"({"text": "")"), "bad_json");
  EXPECT_EQ(reason_of("jsonl", R"({"text": ""})"), "empty_text");
  EXPECT_EQ(reason_of("jsonl", R"({"text": 3})"), "bad_document");
  EXPECT_EQ(reason_of("jsonl", R"(["text"])"), "bad_document");
  EXPECT_EQ(reason_of("jsonl", R"("text")"), "bad_document");
  EXPECT_EQ(reason_of("txt", "\xc3\x28"), "bad_text");
  EXPECT_EQ(reason_of("jsonl", R"({"text": "half \ud83d"})"), "bad_text");
  // What json.dumps writes and json.loads reads in other fields does not matter.
  for (const char* other :
       {"NaN", "-Infinity", "1e999", R"("\ud800")", R"({"k": 1, "k": 2})", "123456789012345678901"})
    EXPECT_EQ(reason_of("jsonl", str(R"({"text": "yes", "score": )", other, "}")), "") << other;
  EXPECT_EQ(reason_of("png", "x"), "no_document");
}

TEST(Text, FillsBatchesExactlyAndCutsDocumentsAtTheirEnds) {
  test::Scratch folder;
  const std::string files = folder.write("0.jsonl", jsonl(0, 40));
  Loader loader(text_config(files, 50), context());
  std::vector<std::int64_t> all;
  for (int i = 0; i < 40; ++i) {
    const auto tokens = tokens_of(document(0, i));
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  std::size_t at = 0;
  for (int step = 0; step < static_cast<int>(all.size()) / 50; ++step) {
    const Batch given = loader.next();
    const SourceBatch& batch = given.sources.at(0);
    EXPECT_EQ(source_name(batch.source), "text");
    ASSERT_EQ(batch.ids.size(), 50U);
    EXPECT_EQ(batch.labels, batch.ids);
    EXPECT_TRUE(
        std::equal(batch.ids.begin(), batch.ids.end(), all.begin() + static_cast<long>(at)));
    at += 50;
    // Every sequence but the last ends with its document; positions begin anew in each.
    const std::int64_t eos = *reader().tokenizer->eos_id();
    for (std::size_t s = 0; s + 1 < batch.sequence_offsets.size(); ++s) {
      const auto first = static_cast<std::size_t>(batch.sequence_offsets[s]);
      const auto end = static_cast<std::size_t>(batch.sequence_offsets[s + 1]);
      EXPECT_EQ(batch.positions[first], 0);
      EXPECT_EQ(batch.positions[end - 1], static_cast<std::int64_t>(end - first) - 1);
      EXPECT_TRUE(end == 50 || batch.ids[end - 1] == eos);
    }
    EXPECT_EQ(batch.num_images(), 0);
    EXPECT_EQ(given.images, nullptr);
  }
}

TEST(Text, DocumentsLongerThanABatchGoOnInTheNext) {
  test::Scratch folder;
  const std::string files = folder.write("0.jsonl", jsonl(0, 10));
  Loader loader(text_config(files, 4), context());
  const auto tokens = tokens_of(document(0, 1));
  const auto first = tokens_of(document(0, 0));
  std::vector<std::int64_t> seen;
  while (seen.size() < first.size() + tokens.size()) {
    const Batch step = loader.next();
    seen.insert(seen.end(), step.sources[0].ids.begin(), step.sources[0].ids.end());
  }
  EXPECT_TRUE(std::equal(first.begin(), first.end(), seen.begin()));
  EXPECT_TRUE(
      std::equal(tokens.begin(), tokens.end(), seen.begin() + static_cast<long>(first.size())));
}

TEST(Text, TarsAndLinesGiveTheSameTokens) {
  test::Scratch folder;
  std::vector<TarFile> files;
  for (int i = 0; i < 30; ++i) files.push_back({std::to_string(i) + ".txt", document(0, i)});
  Loader lines(text_config(gzipped(folder.write("0.jsonl", jsonl(0, 30))), 64), context());
  Loader tar(text_config(folder.write("0.tar", tar_of(files)), 64), context());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(lines.next().sources[0].ids, tar.next().sources[0].ids);
}

TEST(Text, ResumesInTheMiddleOfADocument) {
  test::Scratch folder;
  for (int i = 0; i < 4; ++i) folder.write(std::to_string(i) + ".jsonl", jsonl(i, 25));
  for (const std::int64_t tokens : {7, 40}) {
    DataConfig config = text_config(folder.path("{0..3}.jsonl"), tokens);
    config.workers = 2;
    config.shuffle = {10, 5, {kMiB}};
    config.block<TextConfig>()->num_tokens = 100 * tokens;
    Loader whole(config, context());
    std::vector<nlohmann::json> states{whole.state().save()};
    std::vector<std::uint64_t> expected;
    for (int i = 0; i < 150; ++i) {
      expected.push_back(fingerprint(whole.next()));
      states.push_back(whole.state().save());
    }
    for (std::size_t begin = 0; begin < 140; begin += 3) {
      Loader again(config, context(), std::span(&states[begin], 1));
      for (std::size_t i = begin; i < begin + 10; ++i)
        ASSERT_EQ(fingerprint(again.next()), expected[i]) << begin << " " << i;
    }
  }
}

// What it has given of the document is known to one stream alone, so the others get it whole.
TEST(Text, ADocumentThatWasCutComesAgainWholeOnOtherRanks) {
  test::Scratch folder;
  for (int i = 0; i < 2; ++i) folder.write(std::to_string(i) + ".jsonl", jsonl(i, 20));
  const DataConfig config = text_config(folder.path("{0..1}.jsonl"), 5);
  Loader loader(config, context());
  const auto begun = loader.next().sources[0].ids;
  const nlohmann::json state = loader.state().save();
  std::vector<std::int64_t> cut;
  for (int i = 0; i < 2; ++i) {
    const auto first = tokens_of(document(i, 0));
    if (std::equal(begun.begin(), begun.end(), first.begin())) cut = first;
  }
  ASSERT_GT(cut.size(), begun.size());
  int times = 0;
  for (int rank = 0; rank < 2; ++rank) {
    Loader other(config, context(rank, 2), std::span(&state, 1));
    std::vector<std::int64_t> given;
    for (int step = 0; step < 16; ++step) {  // a fraction of the pass
      const auto ids = other.next().sources[0].ids;
      given.insert(given.end(), ids.begin(), ids.end());
    }
    times += std::search(given.begin(), given.end(), cut.begin(), cut.end()) != given.end();
  }
  EXPECT_EQ(times, 1);
}

TEST(Text, TooLittleTextIsAnError) {
  test::Scratch folder;
  Loader loader(text_config(folder.write("0.jsonl", jsonl(0, 2)), 4096), context());
  EXPECT_THROW(loader.next(), DataError);
}

}  // namespace
}  // namespace floe::data::text_test
