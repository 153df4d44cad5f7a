#include "floe/cli/inspect_run.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/checkpoint/folders.h"
#include "floe/report/run_folder.h"

namespace floe::cli {
namespace {

using nlohmann::ordered_json;

// Somebody may have kept nothing but the checkpoints.
bool has_records(const std::string& run_folder) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(run_folder) / "metrics.jsonl", ignored);
}

void add_records(const report::RunFolder& run, ordered_json& facts) {
  facts["step"] = run.last_step;
  std::int64_t planned = 0;  // unknown when the run counts epochs
  if (const std::string* text = run.setting("train.steps"))
    std::from_chars(text->data(), text->data() + text->size(), planned);
  if (planned > 0) facts["planned_steps"] = planned;
  for (const report::NamedSeries& named : run.series)
    if (report::is_loss(named.name) && std::isfinite(named.series.last()))
      facts["metrics"][named.name] = named.series.last();
}

}  // namespace

ordered_json run_facts(const std::string& run_folder) {
  ordered_json facts{{"run", run_folder}};
  if (has_records(run_folder)) add_records(report::read_run_folder(run_folder), facts);
  facts["checkpoints"] = ordered_json::array();
  for (const auto& listed :
       checkpoint::list_checkpoints(checkpoint::checkpoints_folder(run_folder)))
    facts["checkpoints"].push_back(listed.name);
  return facts;
}

}  // namespace floe::cli
