#include "floe/observe/report/report.h"

#include <filesystem>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/io/file/file.h"

namespace floe::cli {
namespace {

Exit run_report(const Args& args) {
  const Options options(kReportCommand, args);
  require<ConfigError>(options.words().size() == 1,
                       "report takes the folder of one run: floe report RUN [--output FILE]");
  const std::filesystem::path folder = options.words().front();
  const std::string output =
      options.written("--output", ".html").value_or((folder / "report.html").string());
  write_file_atomically(output, report::report_html(report::read_logged_run(folder.string())));
  std::cout << output << "\n";
  return Exit::done;
}

}  // namespace

const Command kReportCommand{
    .name = "report",
    .summary = "one HTML page about a run: losses, throughput, memory, units",
    .about = R"(usage: floe report RUN [--output FILE]

Writes one HTML page about the run in the folder RUN, and prints its path: summary, loss per source,
validation, learning rate, gradient norm, throughput, scores of tasks (RUN/eval, see floe eval), memory
by phase, unit tree, settings, warnings.
The page is whole in itself: it opens without a network, in light and dark. It can be made while the
run goes on; what is missing or damaged in RUN is said on it.
)",
    .options =
        {
            {"--output", "FILE", "where to write it (default: RUN/report.html)"},
        },
    .closing = R"(  floe report runs/demo
)",
    .words = "FOLDER",
    .run = run_report,
};

}  // namespace floe::cli
