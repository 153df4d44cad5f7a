#include "floe/checkpoint/resume.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/manifest.h"
#include "floe/core/error.h"
#include "floe/io/dcp_metadata.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  std::string path;
  std::int64_t step = 0;
  bool emergency = false;
};

}  // namespace

std::vector<std::string> candidates(const std::string& folder,
                                    std::vector<std::string>& passed_over) {
  std::vector<Candidate> found;
  const auto consider = [&](const std::string& name) {
    const std::string path = str(folder, "/", name);
    try {
      require<CheckpointError>(!fs::is_directory(path) || is_dcp_directory(path), "'", path,
                               "' has no .metadata, so its save was not finished");
      const Manifest manifest = read_manifest(manifest_path(path));
      found.push_back({path, manifest.step, manifest.emergency});
    } catch (const Error& e) {
      passed_over.push_back(str("'", path, "' is not used: ", e.what()));
    }
  };
  for (const Listed& listed : list_checkpoints(folder)) consider(listed.name);
  if (fs::exists(str(folder, "/", kEmergency))) consider(kEmergency);
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.emergency > b.emergency;
  });
  std::vector<std::string> paths;
  for (const Candidate& candidate : found) paths.push_back(candidate.path);
  return paths;
}

Choice choose(const std::vector<std::string>& mine,
              const std::function<void(const std::string&)>& validate, Meeting& meeting) {
  const std::string what = "the choice of a checkpoint";
  const auto paths = nlohmann::json::parse(meeting.from_first(nlohmann::json(mine).dump(), what))
                         .get<std::vector<std::string>>();
  Choice choice;
  for (const std::string& path : paths) {
    std::string problem;
    try {
      validate(path);
    } catch (const std::exception& e) {
      problem = e.what();
    }
    problem = meeting.first_problem(problem, what);
    if (problem.empty()) {
      choice.path = path;
      break;
    }
    choice.passed_over.push_back(str("'", path, "' is not used: ", problem));
  }
  return choice;
}

}  // namespace floe::checkpoint
