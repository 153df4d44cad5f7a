#include "floe/checkpoint/checkpoints.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "floe/checkpoint/checkpointer.h"
#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::checkpoint {
namespace {

// A text of the caller's, as checkpoints keep it.
constexpr const char* kText = "text";

nlohmann::json kept_text(const std::string& text, const char* what) {
  require<ConfigError>(is_utf8(text), what,
                       " of a checkpoint is no UTF-8 text; encode bytes first");
  return {{kText, text}};
}

// Empty for what others have saved.
std::string text_of(const nlohmann::json& kept) {
  const auto found = kept.is_object() ? kept.find(kText) : kept.end();
  return found != kept.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<SetOptimizer> by_set(shard::Engine& engine,
                                 const std::vector<optim::Optimizer*>& optimizers) {
  std::vector<SetOptimizer> named;
  std::set<std::size_t> seen;
  for (optim::Optimizer* optimizer : optimizers) {
    require<ConfigError>(optimizer && &optimizer->engine() == &engine,
                         "CheckpointsOptions::optimizers has one of another engine");
    require<ConfigError>(seen.insert(optimizer->set()).second,
                         "CheckpointsOptions::optimizers has two of set ", optimizer->set(),
                         "; pass one for each set");
    const bool only = engine.sets().size() == 1;
    named.push_back({only ? "" : engine.sets()[optimizer->set()].name, optimizer});
  }
  return named;
}

CheckpointerOptions checkpointer_options(shard::Engine& engine, CheckpointsOptions options) {
  require<ConfigError>(!options.folder.empty(),
                       "CheckpointsOptions::folder is empty: name the folder of the run");
  CheckpointerOptions wanted;
  wanted.config.keep = options.keep_newest;
  wanted.config.content = options.only_trainable ? Content::trainable : Content::full;
  wanted.config.async = options.asynchronous;
  wanted.config.on_exception = false;
  wanted.run_folder = std::move(options.folder);
  wanted.engine = &engine;
  wanted.optimizers = by_set(engine, options.optimizers);
  wanted.ema = options.ema;
  return wanted;
}

Resumed as_resumed(Restored restored) {
  Resumed resumed;
  resumed.step = restored.step;
  resumed.shared = text_of(restored.shared);
  for (const nlohmann::json& rank : restored.ranks.all()) resumed.ranks.push_back(text_of(rank));
  resumed.path = std::move(restored.path);
  resumed.anew = std::move(restored.anew);
  resumed.sentence = std::move(restored.sentence);
  resumed.passed_over = std::move(restored.passed_over);
  return resumed;
}

}  // namespace

struct Checkpoints::State {
  Checkpointer checkpointer;
};

Checkpoints::Checkpoints(shard::Engine& engine, CheckpointsOptions options)
    : state_(new State{Checkpointer(checkpointer_options(engine, std::move(options)))}) {}

Checkpoints::~Checkpoints() = default;

std::optional<Resumed> Checkpoints::resume() {
  auto restored = state_->checkpointer.resume("auto");
  if (!restored) return std::nullopt;
  return as_resumed(std::move(*restored));
}

Resumed Checkpoints::resume_from(const std::string& path) {
  auto restored = state_->checkpointer.resume(path);
  require<CheckpointError>(restored.has_value(), "there is no checkpoint at '", path, "'");
  return as_resumed(std::move(*restored));
}

void Checkpoints::save(std::int64_t step, const OwnState& own) {
  state_->checkpointer.save(step, kept_text(own.shared, "OwnState::shared"),
                            kept_text(own.this_rank, "OwnState::this_rank"));
}

void Checkpoints::wait() { state_->checkpointer.wait(); }

std::string Checkpoints::last_saved() const { return state_->checkpointer.last_saved(); }

}  // namespace floe::checkpoint
