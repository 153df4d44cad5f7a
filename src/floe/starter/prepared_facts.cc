// What is in a file of prepared batches, by its header alone.
#include <algorithm>
#include <filesystem>
#include <map>

#include "floe/core/error.h"
#include "floe/data/loader/prepared_batches.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/starter/data_facts.h"

namespace floe::starter {
namespace {

constexpr std::string_view kRankMark = "{rank}";

// The name of a tensor, "step3.laion.input_ids", in its parts.
struct BatchTensor {
  std::string step;
  const data::DataSource* source = nullptr;  // null: it is none of a batch
  std::string what;
};

BatchTensor batch_tensor(const std::string& name) {
  const std::size_t first = name.find('.'), second = name.find('.', first + 1);
  if (!name.starts_with("step") || second == std::string::npos) return {};
  return {name.substr(0, first), data::find_source(name.substr(first + 1, second - first - 1)),
          name.substr(second + 1)};
}

struct StepLoad {
  std::int64_t tokens = 0, images = 0;
};

std::string file_of_rank(std::string path, std::int64_t rank) {
  if (const auto at = path.find(kRankMark); at != std::string::npos)
    path.replace(at, kRankMark.size(), std::to_string(rank));
  return path;
}

// Files of ranks from 0 on.
std::int64_t count_files(const std::string& path) {
  std::error_code ignored;
  if (path.find(kRankMark) == std::string::npos) return std::filesystem::exists(path, ignored);
  std::int64_t count = 0;
  while (std::filesystem::exists(file_of_rank(path, count), ignored)) ++count;
  return count;
}

}  // namespace

DataFacts look_at_batches(const std::string& path) {
  DataFacts facts;
  facts.kind = "batches";
  facts.pattern = path;
  facts.exact = true;
  facts.num_files = count_files(path);
  const std::string file = file_of_rank(path, 0);
  require<ConfigError>(facts.num_files > 0, "init: there is no '", file, "'",
                       data::has_prepared_batches(path) ? "; ranks are counted from 0" : "");

  const auto source = open_tensors(file);
  std::map<std::string, StepLoad> steps;
  for (const std::string& name : source->names()) {
    const BatchTensor tensor = batch_tensor(name);
    if (!tensor.source) continue;
    const auto& shape = source->find(name)->shape;
    StepLoad& step = steps[tensor.step];
    if (tensor.what == "input_ids" && shape.size() == 2) {
      step.tokens += shape[0] * shape[1];
      facts.most_tokens = std::max(facts.most_tokens, shape[1]);
      facts.with_images = facts.with_images || tensor.source->info().has_images;
      const std::string& id = tensor.source->id();
      if (std::find(facts.sources.begin(), facts.sources.end(), id) == facts.sources.end())
        facts.sources.push_back(id);
    } else if (tensor.what.starts_with("images") && shape.size() >= 4) {
      step.images += shape.size() == 5 ? shape[0] * shape[1] : shape[0];
    }
  }
  require<ConfigError>(!facts.sources.empty(), "init: '", file,
                       "' has no prepared batches: their tensors are called "
                       "step0.SOURCE.input_ids and so on (docs/data.md)");
  facts.steps = std::ssize(steps);
  for (const auto& [step, load] : steps) {
    facts.step_tokens = std::max(facts.step_tokens, load.tokens);
    facts.step_images = std::max(facts.step_images, load.images);
  }
  return facts;
}

}  // namespace floe::starter
