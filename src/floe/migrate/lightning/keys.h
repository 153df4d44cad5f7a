// What floe knows of Lightning's keys, as data: one row per key, with what becomes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "floe/migrate/page.h"
#include "floe/schema/value.h"

namespace floe::migrate {

// What the rows write to, and what some of them need to know of others.
struct Target {
  Page page;
  config::Value trainer, strategy;  // the blocks being translated
  bool is_deepspeed = false;        // the strategy, whose types are not those of FSDP
};

struct LightningKey {
  std::string_view name;
  std::string_view keys;    // of floe, joined by ", "; empty: there is no counterpart
  std::string_view remark;  // what floe does
  // Sets the keys from the value; `comment` has key, value and remark. Null: the value is that of
  // the one key as it is, or there is no counterpart.
  void (*apply)(const config::Value& value, const std::string& comment, Target& target) = nullptr;
};

struct LightningBlock {
  std::string_view title, intro;  // of the reference page
  std::vector<LightningKey> keys;
};

const LightningBlock& strategy_block();
const LightningBlock& trainer_block();
const LightningBlock& checkpoint_block();   // ModelCheckpoint
const LightningBlock& early_stop_block();   // EarlyStopping
const LightningBlock& diagnostics_block();  // xlm-core's FSDPDiagnosticsCallback
const LightningBlock& wandb_block();        // WandbLogger

bool knows(const LightningBlock& block, std::string_view key);
// How many keys of a block stand in a map.
std::size_t known_keys(const LightningBlock& block, const config::Map& map);

// "trainer.yaml:3:9: precision ..." as a ConfigError.
[[noreturn]] void refuse(const config::Value& value, const std::string& sentence);

// The last part of a dotted name: "lightning.pytorch.strategies.FSDPStrategy" -> "FSDPStrategy".
std::string last_part(std::string_view dotted);
// The class that a block names by _target_ or class_path; empty: none.
std::string class_of(const config::Value& block);
// What it is made with: the block itself or its init_args, without the class.
config::Map arguments_of(const config::Value& block);

// "${precision}", which only Hydra or LightningCLI resolve; a text, or one anywhere inside.
bool is_reference(const config::Value& value);
bool has_reference(const config::Value& value);
// Whether the strategy may say the types by itself, in what is not resolved.
bool types_are_unresolved(const Target& target);

// Of trainer.devices: the ranks of a machine, if it says how many; its GPUs, if it names them
// ([0, 2] or "0,2").
std::optional<std::int64_t> ranks_of_machine(const config::Value& devices);
std::vector<std::int64_t> chosen_gpus(const config::Value& devices);

// Why EarlyStopping with these arguments is not train.stop; empty: it is.
std::string obstacle_to_stop(const config::Value& arguments);

std::string lower(std::string text);
// A text with the place that another value was written at.
config::Value word(const std::string& text, const config::Value& from);
// Throw ConfigError for anything else; null is false.
bool truth(const config::Value& value, std::string_view key);
std::int64_t whole(const config::Value& value, std::string_view key);

// strategy.mixed_precision.
void set_types(Target& target, const config::Value& from, const std::string& comment,
               const std::string& param, const std::string& reduce, const std::string& buffer);
// For what matters where it is set, and has no counterpart.
void warn_if_set(const config::Value& value, const std::string& comment, Target& target);

}  // namespace floe::migrate
