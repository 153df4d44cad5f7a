// floe init: a commented configuration for a model, data and this machine.
//
//   const Starter starter = make_starter({.model = "opt-125m", .data = {"texts/*.jsonl"}});
//   std::cout << starter.yaml;
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "floe/starter/choices.h"

namespace floe::starter {

struct StarterOptions {
  std::string model;              // Hugging Face folder
  std::string vision, tokenizer;  // empty: not given
  std::vector<std::string> data;  // "PATTERN" or "KIND=PATTERN"
  Wishes wishes;
  std::string output = "train.yaml";  // where it will be written; "-": to the standard output
};

struct Starter {
  std::string yaml;
  // What was seen and chosen, a line each: {"model", "opt, 12 layers …"}.
  std::vector<std::pair<std::string, std::string>> summary;
  std::vector<std::string> next;      // commands
  std::vector<std::string> warnings;  // sentences
};

// Looks at everything; writes nothing. Throws ConfigError.
Starter make_starter(const StarterOptions& options);

}  // namespace floe::starter
