#include "floe/checkpoint/save_job.h"

#include <functional>

#include "floe/checkpoint/assemble.h"
#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/single_file.h"
#include "floe/checkpoint/stop_point.h"
#include "floe/core/error.h"

namespace floe::checkpoint {
namespace {

// What went wrong, as a text to tell the others; empty when nothing did.
std::string problem_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Where every rank writes.
std::string temporary_folder(const SaveJob& job) {
  return str(job.folder, "/", kTemporary, name_of_step(Layout::sharded, job.header.step));
}

void prepare(const SaveJob& job) {
  make_folder(job.folder);
  remove_quietly(temporary_folder(job));
  make_folder(temporary_folder(job));
  stop_point("folder made");
}

void commit(const SaveJob& job) {
  const std::string temporary = temporary_folder(job);
  std::vector<RankManifest> ranks;
  for (int rank = 0; rank < job.header.world_size; ++rank)
    ranks.push_back(read_rank_manifest(temporary, rank));
  assemble(temporary, job.about, ranks);
  const Layout layout = job.about.layout;
  const std::string name = name_of_step(layout, job.header.step);
  if (layout == Layout::sharded) {
    replace(temporary, str(job.folder, "/", name));
  } else {
    make_single_file(temporary, job, str(job.folder, "/", name));
    remove_quietly(temporary);
  }
  stop_point("renamed");
  sync_folder(job.folder);
  point_last_to(job.folder, name);
  sync_folder(job.folder);
  stop_point("linked");
  retire_emergencies(job.folder);
  keep_only(job.folder, job.config, job.header.step);
}

}  // namespace

std::string run_save(const SaveJob& job, Meeting& meeting) {
  const std::string what = str("the save of step ", job.header.step);
  const bool first = meeting.rank() == 0;
  const auto agree = [&](const std::string& problem) {
    const std::string found = meeting.first_problem(problem, what);
    if (found.empty()) return;
    if (first) remove_quietly(temporary_folder(job));
    throw CheckpointError(str(what, " failed, older checkpoints are as they were: ", found));
  };
  agree(first ? problem_of([&] { prepare(job); }) : "");
  agree(problem_of(
      [&] { write_rank_files(temporary_folder(job), job.header, job.tensors, job.objects); }));
  stop_point("all written");
  agree(first ? problem_of([&] { commit(job); }) : "");
  return str(job.folder, "/", name_of_step(job.about.layout, job.header.step));
}

}  // namespace floe::checkpoint
