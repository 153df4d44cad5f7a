#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/cli/command.h"
#include "floe/cli/doctor_checks.h"
#include "floe/cli/options.h"

namespace floe::cli {
namespace {

constexpr std::string_view kHelp =
    R"(usage: floe doctor [--json]

Looks at this machine the way a training run would: versions, devices, backends, libraries, network
interfaces, limits, the environment of launchers, and two ranks that really communicate. Every line is
'ok', 'note' or 'problem'; a problem says what to do. Exit code 1 when there is one.

  --json      the findings as JSON
  --no-ranks  without starting the two ranks
)";

Exit run(const Args& args) {
  const Options options("doctor", args, {{"--json"}, {"--no-ranks"}, {"--as-rank"}});
  require<ConfigError>(options.words().empty(), "doctor takes no arguments, got '",
                       join(options.words(), " "), "'");
  if (options.has("--as-rank")) {
    communicate_as_rank();
    return Exit::done;
  }
  std::vector<Finding> findings = look_at_machine();
  if (!options.has("--no-ranks")) findings.push_back(try_two_ranks());

  bool problem = false;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    problem = problem || finding.state == Finding::State::problem;
    if (options.has("--json")) {
      json.push_back({{"state", name_of(finding.state)},
                      {"what", finding.what},
                      {"found", finding.found},
                      {"advice", finding.advice}});
      continue;
    }
    std::cout << name_of(finding.state) << std::string(9 - name_of(finding.state).size(), ' ')
              << finding.what << ": " << finding.found << "\n";
    if (!finding.advice.empty()) std::cout << "         " << finding.advice << "\n";
  }
  if (options.has("--json"))
    std::cout << json.dump(2) << "\n";
  else
    std::cout << (problem ? "There are problems; see what each line says.\n" : "All is well.\n");
  return problem ? Exit::failed : Exit::done;
}

}  // namespace

const Command kDoctorCommand{
    .name = "doctor",
    .summary = "what is wrong with this machine, and what to do",
    .help = kHelp,
    .run = run,
};

}  // namespace floe::cli
