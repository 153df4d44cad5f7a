// The parts of a translated command, one function for each block or two of the configuration.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "floe/migrate/openflamingo/flags.h"
#include "floe/migrate/openflamingo/launcher.h"
#include "floe/migrate/page.h"

namespace floe::migrate {

// The command that is read, and the page that is written.
struct Translation {
  // Throws ConfigError where the command is none that trains.
  explicit Translation(const std::vector<std::string>& command);

  Page page;
  Launch launch;
  FlagValues flags;

  bool is_on(std::string_view flag) const { return flags.given(flag); }
  bool has_source(std::string_view source) const;  // laion, mmc4: whether it has shards
  // "--seed 7: Of everything random ..."
  std::string comment(std::string_view flag) const;
  // The flag's value as that of the key.
  void copy(std::string_view flag, std::string_view key);
  // That a flag, if it is given, has no counterpart.
  void leave_out(std::string_view flag);
};

void translate_run(Translation& t);
void translate_model(Translation& t, const std::string& models);
void translate_data(Translation& t);
// Flags whose value is that of one key.
void translate_plain_flags(Translation& t);
void translate_schedule(Translation& t);
void translate_strategy(Translation& t);
void translate_precision(Translation& t);
void translate_checkpoints(Translation& t);
void translate_wandb(Translation& t);
void translate_ranks(Translation& t);

}  // namespace floe::migrate
