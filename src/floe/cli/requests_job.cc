#include "floe/cli/requests_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>

#include "floe/comm/world.h"
#include "floe/core/hash.h"
#include "floe/core/utf8.h"
#include "floe/io/file/file.h"
#include "floe/nn/module.h"
#include "floe/requests/output.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBatchTokens = std::int64_t{1} << 40;

// All that results depend on; how fast they are made is not among it. Names on disk may have any
// bytes, JSON may not.
nlohmann::ordered_json settings_of(const RequestsJob& job, const Options& options,
                                   const LoadedModel& loaded, const requests::RequestFile& file) {
  static const std::set<std::string> others{"--output", "--force", "--batch-tokens", "--requests",
                                            "--sharded"};
  nlohmann::ordered_json settings{{"command", std::string(job.command.name)},
                                  {"model", shown_bytes(fs::absolute(loaded.origin).string())},
                                  {"weights", loaded.digest},
                                  {"changes", shown_bytes(join(job.changes, " "))},
                                  {"requests", file.size()},
                                  {"digest", file.digest()}};
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
  require<ConfigError>(!fs::equivalent(*out, job.file, ignored), job.command.name,
                       ": --output is the file of requests itself; name another");
  require<ConfigError>(options.has("--force") || type == fs::file_type::not_found, job.command.name,
                       ": '", *out,
                       "' is there already; name another --output, or replace it with --force");
}

requests::Summary run_as_rank(const RequestsJob& job, const Options& options,
                              const std::shared_ptr<comm::World>& world) {
  requests::RunRequests how;
  how.batch_tokens =
      options.integer("--batch-tokens", generation::kBatchTokens, 1, kMostBatchTokens);
  how.world = world.get();
  how.stop = &stop_on_signals();
  const std::string name(job.command.name);
  const LoadedModel loaded = load_model(name, job.model, job.changes, options, world);
  generation::require_decoder(*loaded.built.model);
  const requests::RequestFile file(job.file, loaded.built, job.needs(loaded));
  std::unique_ptr<requests::Output> output;
  if (const auto path = options.value("--output")) {
    const auto settings = settings_of(job, options, loaded, file);
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
  return requests::run_requests(file, job.work(loaded, how), *output, how);
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

std::vector<OptionRow> requests_options() {
  return {
      {"--output", "FILE",
       "results, a JSON object on each line, in the order of the requests; started again after an "
       "interruption, the command goes on with what is missing (default: stdout, one rank only)"},
      {"--force", "", "replace what is at --output, and begin anew where settings have changed"},
      {"--batch-tokens", "N",
       str("at most so many tokens of all sequences of a batch together, an image counting as ",
           generation::kTokensOfImage, " (default ", generation::kBatchTokens, ")")},
      sharded_option(),
  };
}

Exit run_requests_job(const RequestsJob& job, const Options& options) {
  require<ConfigError>(path_exists(job.file), job.command.name, ": there is no file '", job.file,
                       "' of requests");
  require<ConfigError>(fs::is_regular_file(job.file), job.command.name, ": '", job.file,
                       "' is a folder, a pipe or a device; name a file of requests");
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
