#include "floe/checkpoint/resume.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/manifest.h"
#include "floe/checkpoint/sealed_json.h"
#include "floe/core/error.h"
#include "floe/io/dcp_metadata.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  std::string path;
  std::int64_t step = 0;
  bool emergency = false;
  std::string began_from;  // Note [Where a run began]
};

std::vector<Candidate> find_candidates(const std::string& folder,
                                       std::vector<std::string>& passed_over) {
  std::vector<Candidate> found;
  const auto consider = [&](const std::string& name) {
    const std::string path = str(folder, "/", name);
    try {
      require<CheckpointError>(!fs::is_directory(path) || is_dcp_directory(path), "'", path,
                               "' has no .metadata, so its save was not finished");
      const Manifest manifest = read_manifest(manifest_path(path));
      const auto& shared = manifest.shared;
      found.push_back({path, manifest.step, manifest.emergency,
                       shared.is_object() ? shared.value(kBeganFrom, "") : ""});
    } catch (const Error& e) {
      passed_over.push_back(str("'", path, "' is not used: ", e.what()));
    }
  };
  for (const Listed& listed : list_checkpoints(folder)) consider(listed.name);
  if (fs::exists(str(folder, "/", kEmergency))) consider(kEmergency);
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.emergency > b.emergency;
  });
  return found;
}

// The step of a checkpoint that floe wrote; 0 for others, which do not tell without being opened.
std::int64_t step_of(const std::string& path) {
  try {
    if (fs::exists(manifest_path(path))) return read_manifest(manifest_path(path)).step;
  } catch (const Error&) {
    // Whoever tries to use it says why it cannot be.
  }
  return 0;
}

}  // namespace

bool is_run_folder(const std::string& path) { return fs::is_directory(checkpoints_folder(path)); }

std::vector<std::string> candidates(const std::string& folder,
                                    std::vector<std::string>& passed_over) {
  std::vector<std::string> paths;
  for (const Candidate& candidate : find_candidates(folder, passed_over))
    paths.push_back(candidate.path);
  return paths;
}

std::vector<std::string> candidates_from(const std::string& path, const std::string& folder,
                                         std::vector<std::string>& passed_over) {
  std::vector<std::string> begin{path};
  if (is_run_folder(path)) begin = candidates(checkpoints_folder(path), passed_over);
  const std::int64_t begin_step = begin.empty() ? 0 : step_of(begin.front());
  const std::vector<Candidate> all = find_candidates(folder, passed_over);
  const bool has_begun = std::any_of(all.begin(), all.end(),
                                     [&](const Candidate& own) { return own.began_from == path; });
  std::vector<std::string> paths;
  for (const Candidate& own : all)
    if (has_begun || own.step >= begin_step) paths.push_back(own.path);
  paths.insert(paths.end(), begin.begin(), begin.end());
  return paths;
}

Choice choose(const std::vector<std::string>& mine,
              const std::function<void(const std::string&)>& validate, Meeting& meeting) {
  const std::string what = "the choice of a checkpoint";
  const auto paths = as_bytes(nlohmann::json::parse(meeting.from_first(as_text(mine).dump(), what)))
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
