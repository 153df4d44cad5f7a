#include "floe/cli/requests_job.h"

#include <filesystem>
#include <iostream>
#include <set>

#include "floe/comm/world.h"
#include "floe/core/utf8.h"
#include "floe/io/file/file.h"
#include "floe/requests/output.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

// All that results depend on; how fast they are made is not among it. Names on disk may have any
// bytes, JSON may not.
nlohmann::ordered_json settings_of(const RequestsJob& job, const Options& options,
                                   const LoadedModel& loaded,
                                   const requests::RequestSource& source) {
  static const std::set<std::string> others{"--output",   "--force",   "--batch-tokens",
                                            "--requests", "--sharded", "--shards"};
  nlohmann::ordered_json settings{{"command", std::string(job.command.name)},
                                  {"model", shown_bytes(fs::absolute(loaded.origin).string())},
                                  {"weights", weights_digest(loaded)},
                                  {"changes", shown_bytes(join(job.changes, " "))},
                                  {"requests", source.size()},
                                  {"digest", source.digest()}};
  for (const OptionRow& row : job.command.options)
    if (row.name.starts_with("-") && !others.contains(row.name))
      settings[row.name] =
          shown_bytes(options.has(row.name) ? join(options.values(row.name), " ") : "");
  return settings;
}

void check_output(const RequestsJob& job, const Options& options, int ranks) {
  const auto out = options.value("--output");
  require<ConfigError>(out || ranks == 1, job.command.name, ": ", ranks,
                       " ranks cannot share stdout; name a file with --output");
  require<ConfigError>(out || !options.has("--force"), job.command.name,
                       ": --force has no use without --output");
  if (!out) return;
  require<ConfigError>(!out->empty(), job.command.name, ": --output is empty; name a file");
  const fs::path file = fs::path(behind_links(*out));
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  std::error_code error;
  require<ConfigError>(fs::is_directory(folder, error), job.command.name, ": there is no folder '",
                       folder, "' for --output");
  const fs::file_type type = fs::status(file, error).type();
  require<ConfigError>(type != fs::file_type::none, job.command.name, ": --output cannot be '",
                       *out, "': ", error.message());
  require<ConfigError>(type == fs::file_type::not_found || type == fs::file_type::regular,
                       job.command.name, ": --output is '", *out, "', which is no file; name one");
  std::error_code ignored;
  require<ConfigError>(job.shards || !fs::equivalent(*out, job.file, ignored), job.command.name,
                       ": --output is the file of requests itself; name another");
  require<ConfigError>(options.has("--force") || type == fs::file_type::not_found, job.command.name,
                       ": '", *out,
                       "' is there already; name another --output, or replace it with --force");
}

std::unique_ptr<requests::RequestSource> open_source(const RequestsJob& job,
                                                     const LoadedModel& loaded) {
  const requests::RequestNeeds needs = job.needs(loaded);
  if (!job.shards) return std::make_unique<requests::RequestFile>(job.file, loaded.built, needs);
  require<ConfigError>(loaded.built.tokenizer != nullptr, job.command.name,
                       ": --prompt needs a tokenizer, and the model has none; set 'tokenizer:' in "
                       "its YAML");
  return std::make_unique<requests::ShardRequests>(*job.shards, loaded.built, needs);
}

requests::Summary run_as_rank(const RequestsJob& job, const Options& options,
                              const std::shared_ptr<comm::World>& world) {
  requests::RunRequests how;
  how.batch_tokens = batch_tokens_of(options);
  how.world = world.get();
  how.stop = &stop_on_signals();
  const std::string name(job.command.name);
  const LoadedModel loaded = load_model(name, job.model, job.changes, options, world);
  generation::require_decoder(*loaded.built.model);
  const std::unique_ptr<requests::RequestSource> source = open_source(job, loaded);
  std::unique_ptr<requests::Output> output;
  if (const auto path = options.value("--output")) {
    const auto settings = settings_of(job, options, loaded, *source);
    if (world) {
      std::vector<comm::NamedText> values;
      for (const auto& [name, value] : settings.items()) values.push_back({name, value.dump()});
      world->require_same("what they compute", values,
                          "start all ranks with the same files and the same command line");
    }
    output = requests::file_output({*path, settings, options.has("--force")}, world.get());
  } else {
    output = requests::stream_output(std::cout);
  }
  return requests::run_requests(*source, job.work(loaded, how), *output, how);
}

// Lines that are no requests are a mistake of usage, of which the user hears when all else is done.
// `speaks`: throws ConfigError for it, else only the exit code says so.
Exit exit_of(const RequestsJob& job, const requests::Summary& summary, bool speaks) {
  if (summary.stopped) return Exit::stopped;
  if (summary.first_malformed.empty()) return Exit::done;
  if (!speaks) return Exit::usage;
  const std::int64_t others = summary.malformed - 1;
  throw ConfigError(str(job.command.name, ": ", summary.first_malformed,
                        others > 0 ? str(" (and ", counted(others, "other line"),
                                         others == 1 ? " is" : " are", " no request)")
                                   : "",
                        "; all other requests are done"));
}

}  // namespace

OptionRow batch_tokens_option() {
  return {"--batch-tokens", "N",
          str("at most so many tokens of all sequences of a batch together, an image counting as ",
              generation::kTokensOfImage, " (default ", generation::kBatchTokens, ")")};
}

std::int64_t batch_tokens_of(const Options& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  return options.integer("--batch-tokens", generation::kBatchTokens, 1, kMost);
}

std::vector<OptionRow> requests_options() {
  return {
      {"--output", "FILE",
       "results, a JSON object on each line, in the order of the requests; started again after an "
       "interruption, the command goes on with what is missing (default: stdout, one rank only)"},
      {"--force", "", "replace what is at --output, and begin anew where settings have changed"},
      batch_tokens_option(),
      sharded_option(),
  };
}

std::vector<OptionRow> shards_options(bool with_candidates) {
  std::vector<OptionRow> rows{
      {"--shards", "LIST",
       "ask --prompt of every sample of a data set instead: tar shards such as "
       "'data/{0000..0127}.tar', or their folder"}};
  if (with_candidates)
    rows.push_back(
        {"--candidate", "TEXT",
         "with --shards: a candidate; {txt} stands for the sample's .txt, {json.KEY} for "
         "a value of its .json; may repeat",
         kRepeats});
  return rows;
}

std::optional<requests::ShardTemplate> shards_of(const std::string& command, const Options& options,
                                                 bool with_candidates) {
  const auto shards = options.value("--shards");
  if (!shards) return std::nullopt;
  const auto prompts = options.values("--prompt");
  require<ConfigError>(prompts.size() == 1, command, ": --shards needs one --prompt, such as '",
                       with_candidates ? "<image>" : "<image>Output:", "', and there are ",
                       prompts.size());
  requests::ShardTemplate how{as_shards(*shards), prompts[0], {}};
  require<ConfigError>(!how.shards.empty(), command, ": the folder '", *shards,
                       "' has no tar shards");
  if (with_candidates) how.candidates = options.values("--candidate");
  require<ConfigError>(!with_candidates || !how.candidates.empty(), command,
                       ": --shards needs --candidate, such as '{txt}'");
  return how;
}

Exit run_requests_job(const RequestsJob& job, const Options& options) {
  require<ConfigError>(job.shards || path_exists(job.file), job.command.name,
                       ": there is no file '", job.file, "' of requests");
  require<ConfigError>(job.shards || fs::is_regular_file(job.file), job.command.name, ": '",
                       job.file, "' is a folder, a pipe or a device; name a file of requests");
  comm::WorldOptions place = ranks_of(std::string(job.command.name), options);
  check_output(job, options, place.rendezvous.world_size);
  if (place.rendezvous.world_size == 1)
    return exit_of(job, run_as_rank(job, options, nullptr), /*speaks=*/true);
  place.run = fs::absolute(options.value("--output").value_or("")).string();
  const auto world = comm::World::join(place);
  requests::Summary summary;
  const int code = comm::guarded(*world, [&] { summary = run_as_rank(job, options, world); });
  return code == 0 ? exit_of(job, summary, /*speaks=*/world->rank() == 0) : static_cast<Exit>(code);
}

}  // namespace floe::cli
