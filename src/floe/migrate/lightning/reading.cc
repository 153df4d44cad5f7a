#include "floe/migrate/lightning/reading.h"

#include <algorithm>
#include <array>
#include <utility>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/migrate/lightning/keys.h"

namespace floe::migrate {
namespace {

using config::List;
using config::Map;
using config::Value;

// ---- merge keys ----

constexpr std::string_view kMergeKey = "<<";

void add_missing(Map& map, const Value& from) {
  if (!from.as<Map>())
    refuse(from, str("'<<' merges a block or a list of blocks, not ", from.shown()));
  for (const auto& [key, value] : *from.as<Map>())
    if (!map.find(key)) map[key] = value;
}

// `<<: *base` and `<<: [*first, *second]`: a key that is written out wins over a merged one, an
// earlier block of the list over a later one.
void resolve_merge_keys(Value& value) {
  if (auto* list = value.as<List>())
    for (Value& item : *list) resolve_merge_keys(item);
  Map* map = value.as<Map>();
  if (!map) return;
  for (auto& [key, item] : *map) resolve_merge_keys(item);
  const Value* found = map->find(kMergeKey);
  if (!found) return;
  const Value merged = *found;
  map->erase(kMergeKey);
  if (const auto* list = merged.as<List>()) {
    for (const Value& item : *list) add_missing(*map, item);
  } else {
    add_missing(*map, merged);
  }
}

// ---- floe's own ----

struct OwnBlock {
  const char* name;
  std::vector<const char*> keys;  // those by which it is known
};

const std::vector<OwnBlock>& own_blocks() {
  static const std::vector<OwnBlock> blocks{
      {"run", {"name", "dir", "seed", "resume", "resume_data"}},
      {"dist", {"backend", "device", "init", "timeout_s"}},
      {"model", {"type", "lm", "vision", "lora", "weights", "cross_attn_every_n_layers"}},
      {"data", {"laion", "mmc4", "text", "instruct", "batches", "resampled"}},
      {"train",
       {"steps", "epochs", "trainable", "cycle_phases", "packed", "gradient_accumulation", "clip",
        "optimizer", "schedule", "ema", "validation", "stop"}},
      {"strategy",
       {"sharding", "hybrid_shard_size", "units", "cuda_graphs", "prefetch", "activations",
        "frozen"}},
      {"precision", {"autocast", "loss_scale"}},
      {"checkpoint", {"every_steps", "every_epochs", "keep", "keep_best", "content", "async"}},
      {"log", {"every_steps", "wandb", "tensorboard", "jsonl", "diagnostics"}},
  };
  return blocks;
}

bool has_class(const Value& block) { return !class_of(block).empty(); }

// What only Lightning's files have: classes, and keys of a trainer or strategy. Where a name is one
// of both, floe has a block with its own keys.
bool speaks_lightning(const Value& file) {
  constexpr std::array kShared = {"activation_checkpointing", "cpu_offload", "mixed_precision"};
  constexpr std::array kTopLevel = {"trainer", "seed_everything", "lightning_module", "datamodule"};
  const auto is_one_of = [](const auto& names, const std::string& key) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  if (has_class(file)) return true;
  for (const auto& [key, value] : *file.as<Map>()) {
    const bool is_block = value.as<Map>() != nullptr;
    if (has_class(value) || is_one_of(kTopLevel, key)) return true;
    if (knows(strategy_block(), key) && !is_one_of(kShared, key)) return true;
    if (knows(trainer_block(), key) && !(is_block && (key == "strategy" || key == "precision")))
      return true;
    if (key != "strategy" || !is_block) continue;
    for (const auto& [part, item] : *value.as<Map>())
      if (has_class(item) || (knows(strategy_block(), part) && !is_one_of(kShared, part)))
        return true;
  }
  return false;
}

bool is_own(const Value& file) {
  if (speaks_lightning(file)) return false;
  const Map& map = *file.as<Map>();
  // `sharding` and `auto`: strategy/*.yaml
  if (map.find("phases") || map.find("sharding") || map.find("auto")) return true;
  return std::any_of(own_blocks().begin(), own_blocks().end(), [&](const OwnBlock& block) {
    const Value* value = map.find(block.name);
    return value && value->as<Map>() &&
           std::any_of(block.keys.begin(), block.keys.end(),
                       [&](const char* key) { return value->as<Map>()->find(key) != nullptr; });
  });
}

// ---- parts ----

Value in_whole(Value file, const std::string& path) {
  Map* map = file.as<Map>();
  require<ConfigError>(
      map && !map->empty(), "migrate: ", path,
      " is no block of Lightning: it should have keys such as trainer or strategy");
  // LightningCLI's files for one command have its name around them.
  if (const Value* fit = map->find("fit"); fit && fit->as<Map>() && map->size() == 1)
    return in_whole(*fit, path);
  if (map->find("trainer")) return file;
  require<ConfigError>(!is_own(file), "migrate: ", path,
                       " is already a configuration of floe; give it to floe train");
  const std::string name = last_part(class_of(file));
  const bool is_trainer = map->find("strategy") || name == "Trainer";
  const bool is_strategy =
      !is_trainer && (name.ends_with("Strategy") || known_keys(strategy_block(), *map) > 0);
  require<ConfigError>(is_trainer || is_strategy || known_keys(trainer_block(), *map) > 0,
                       "migrate: ", path, " has neither trainer nor strategy, and none of ",
                       "their keys; it has ", join(map->keys()));
  if (is_strategy) {
    Value trainer{Map(), file.origin};
    (*trainer.as<Map>())["strategy"] = std::move(file);
    file = std::move(trainer);
  }
  Value whole{Map(), file.origin};
  (*whole.as<Map>())["trainer"] = std::move(file);
  return whole;
}

}  // namespace

Value read_lightning(const std::string& path) {
  Value file = config::read_yaml(path);
  resolve_merge_keys(file);
  return in_whole(std::move(file), path);
}

}  // namespace floe::migrate
