// The keys of a starter: which ones a beginner should see, their values, and why they have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/starter/commented_yaml.h"
#include "floe/starter/starter.h"

namespace floe::starter {

struct Seen {
  const StarterOptions& options;
  const ModelFacts& model;
  const std::vector<DataFacts>& data;
  const Machine& machine;
};

// Of the block `model:`, without adapters.
std::vector<Entry> model_entries(const StarterOptions& options, const ModelFacts& model);
// Of a whole configuration; `name` is that of the run.
std::vector<Entry> all_entries(const Seen& seen, const Choices& chosen, const std::string& name);

// The longest sample of a source, where the model has positions for fewer tokens than its default.
std::optional<std::int64_t> max_tokens_of(const std::string& kind, const ModelFacts& model);

// Text that stays as it is when references are resolved (Note [References]).
config::Value text_value(const std::string& text);

// Whether relative paths of the file are looked for in the working directory, as those of the
// command line are.
bool lies_here(const std::string& output);

}  // namespace floe::starter
