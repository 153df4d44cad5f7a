#include "floe/migrate/openflamingo/openflamingo.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/migrate/openflamingo/sections.h"

namespace floe::migrate {

using config::Value;

Translation::Translation(const std::vector<std::string>& command)
    : page("From OpenFlamingo's train.py, by floe migrate."),
      launch(read_launch(command, page)),
      flags(launch.flags, page) {}

bool Translation::has_source(std::string_view source) const {
  return !flags.text(str("--", source, "_shards")).empty();
}

std::string Translation::comment(std::string_view flag) const {
  const auto& all = openflamingo_flags();
  const auto row =
      std::find_if(all.begin(), all.end(), [&](const Flag& f) { return f.name == flag; });
  return str(flags.shown(flag), ": ", row->remark);
}

void Translation::copy(std::string_view flag, std::string_view key) {
  page.set(key, flags.value(flag), comment(flag));
}

void Translation::leave_out(std::string_view flag) {
  if (flags.given(flag)) page.leave_out(comment(flag));
}

void translate_run(Translation& t) {
  const std::string path = t.flags.text("--run_name");
  const auto end = path.find_last_not_of('/');
  const std::string whole = end == std::string::npos ? "" : path.substr(0, end + 1);
  const auto slash = whole.rfind('/');
  const std::string name = slash == std::string::npos ? whole : whole.substr(slash + 1);
  require<ConfigError>(!name.empty() && name != "." && name != "..", "migrate: --run_name '", path,
                       "' names no folder of its own for the run");
  t.page.set(
      "run.name", t.flags.value("--run_name", name),
      str(t.flags.shown("--run_name"), ": The run's folder has this name; so has the W&B run."));
  if (slash != std::string::npos)
    t.page.set("run.dir", t.flags.value("--run_name", slash == 0 ? "/" : whole.substr(0, slash)),
               "");
  if (!t.flags.text("--resume_from_checkpoint").empty())
    t.copy("--resume_from_checkpoint", "run.resume");
  else
    t.page.add_comment("run.name",
                       str("train.py would go on from ", shell_word(whole + "/checkpoint_N.pt"),
                           "; floe begins anew unless run.resume names that file."));
}

void translate_checkpoints(Translation& t) {
  t.page.set("checkpoint.every_steps", Value(), "train.py saves at the end of every epoch.");
  t.page.set("checkpoint.every_epochs", Value(std::int64_t{1}), "");
  if (t.is_on("--delete_previous_checkpoint"))
    t.copy("--delete_previous_checkpoint", "checkpoint.delete_previous_checkpoint");
  else
    t.page.set("checkpoint.keep", Value(),
               "--delete_previous_checkpoint (not given): All checkpoints stay.");
  t.page.set("checkpoint.state_dict_type", Value(std::string("trainable")),
             "checkpoint_N.pt in OpenFlamingo's layout, for what reads train.py's files (N counts "
             "updates). sharded, floe's default, is a directory that all ranks write.");
}

namespace {

Page translate(const std::vector<std::string>& command, const OpenFlamingoOptions& options) {
  Translation t(command);
  translate_run(t);
  translate_model(t, options.models);
  translate_data(t);
  translate_plain_flags(t);
  translate_schedule(t);
  translate_strategy(t);
  translate_precision(t);
  translate_checkpoints(t);
  translate_wandb(t);
  translate_ranks(t);
  t.page.set_command(t.launch.command());
  t.page.set_world(t.launch.world);
  return std::move(t.page);
}

}  // namespace

Page from_openflamingo(const std::vector<std::string>& command,
                       const OpenFlamingoOptions& options) {
  for (const std::string& word : command)
    require<ConfigError>(is_utf8(word), "migrate: the word '", shown_bytes(word),
                         "' of the command is not UTF-8, which a configuration must be");
  try {
    return translate(command, options);
  } catch (const ConfigError& error) {
    throw ConfigError(one_line(error.what()));  // it may quote any word
  }
}

}  // namespace floe::migrate
