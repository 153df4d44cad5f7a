// The loader from the command line, for tests:
//   loader_tool CONFIG.yaml TOKENIZER --steps N [--state FILE] [--rank R --world W] [--size S]
//               [--resume FILE]... [--slow MS]
// prints a JSON line per step (epoch, index, keys, a hash of all that a model would see), and a
// last one with the counts. After each line the state is in FILE, which appears whole.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "floe/config/yaml.h"
#include "floe/io/file/file.h"
#include "floe/schema/schema.h"
#include "tests/data/loader_corpus.h"

namespace floe::data {
namespace {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  require(file.good(), "cannot read ", path);
  return nlohmann::json::parse(file);
}

void run(const std::vector<std::string>& words) {
  const DataConfig config = config::bind<DataConfig>(config::read_yaml(words.at(0)));
  LoaderContext at;
  at.seed = 7;
  at.transform.size = 8;
  std::unique_ptr<token::Tokenizer> tokenizer;
  if (words.at(1) != "-") {
    tokenizer = token::load_tokenizer(words.at(1));
    at.tokens = token::add_flamingo_tokens(*tokenizer);
    at.tokenizer = tokenizer.get();
  }
  int steps = 0, slow_ms = 0;
  std::string state;
  std::vector<nlohmann::json> saved;
  for (std::size_t i = 2; i + 1 < words.size(); i += 2) {
    const std::string& value = words[i + 1];
    if (words[i] == "--steps") steps = std::stoi(value);
    if (words[i] == "--state") state = value;
    if (words[i] == "--rank") at.rank = std::stoi(value);
    if (words[i] == "--world") at.world = std::stoi(value);
    if (words[i] == "--size") at.transform.size = std::stoi(value);
    if (words[i] == "--slow") slow_ms = std::stoi(value);
    if (words[i] == "--resume") saved.push_back(read_json(value));
  }
  Loader loader(config, at, saved);
  for (int i = 0; i < steps; ++i) {
    const Batch step = loader.next();
    nlohmann::json line{{"epoch", step.epoch}, {"index", step.index}, {"hash", fingerprint(step)}};
    for (const SourceBatch& batch : step.sources)
      for (const std::string& key : batch.keys) line["keys"].push_back(key);
    if (!state.empty()) write_file_atomically(state, loader.state().save().dump());
    std::cout << line.dump() << std::endl;
    if (slow_ms) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
  }
  nlohmann::json counts;
  for (const auto& [name, each] : loader.counts()) counts[name] = each.save();
  std::cout << nlohmann::json{{"counts", counts}}.dump() << std::endl;
}

}  // namespace
}  // namespace floe::data

int main(int argc, char** argv) {
  try {
    floe::data::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
