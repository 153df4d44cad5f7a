#include "floe/plan/calibrate/calibrate.h"

#include <filesystem>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/comm/rendezvous.h"
#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/file/file.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

struct CalibrateJob {
  std::string file;  // empty: stdout
  bool force = false;
  std::optional<c10::Device> device;
  plan::CalibrateSettings settings;
};

CalibrateJob read_calibrate_job(const Options& options) {
  require<ConfigError>(options.words().size() <= 1, "calibrate writes one file, got '",
                       join(options.words(), " "), "'");
  CalibrateJob job;
  if (!options.words().empty()) job.file = options.words()[0];
  job.force = options.has("--force");
  if (const auto device = options.value("--device")) {
    require<ConfigError>(*device == "cpu" || *device == "cuda", "calibrate: --device '", *device,
                         "' is neither cpu nor cuda");
    job.device = c10::Device(*device == "cpu" ? c10::kCPU : c10::kCUDA);
  }
  job.settings.like = options.value("--like").value_or("");
  job.settings.name = options.value("--name").value_or("");
  job.settings.rounds = static_cast<int>(options.integer("--rounds", 5, 1, 100));
  return job;
}

// Before anything is measured: whether the file can be written.
void check_output(const CalibrateJob& job) {
  if (job.file.empty()) return;
  const fs::path path(job.file);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  require<ConfigError>(fs::is_directory(folder), "calibrate: there is no folder '", folder.string(),
                       "' to write '", path.filename().string(), "' into");
  require<ConfigError>(!fs::is_directory(path), "calibrate: '", job.file,
                       "' is a folder; name a file");
  require<ConfigError>(job.force || !path_exists(job.file), "calibrate: '", job.file,
                       "' is there already; name another file, or say --force");
  const std::string probe = job.file + ".calibrate";
  try {
    write_file_atomically(probe, "");
  } catch (const Error& e) {
    throw ConfigError(str("calibrate: cannot write '", job.file, "': ", e.what()));
  }
  fs::remove(probe);
}

void write_result(const CalibrateJob& job, const plan::Calibration& found) {
  const std::string text = plan::to_yaml(found);
  if (job.file.empty()) {
    std::cout << text << std::flush;
    return;
  }
  write_file_atomically(job.file, text);
  std::cout << "wrote " << job.file << " (" << found.hardware << "); floe plan CONFIG --gpu "
            << job.file << " --batch BATCH takes it\n";
}

Exit run_calibrate(const Args& args) {
  const Options options(kCalibrateCommand, args);
  const CalibrateJob job = read_calibrate_job(options);
  comm::WorldOptions place;
  place.device = job.device;
  place.rendezvous = comm::find_rendezvous({}, comm::process_environment());
  if (place.rendezvous.rank == 0) check_output(job);
  const auto world = comm::World::join(place);
  const int code = comm::guarded(*world, [&] {
    const plan::Calibration found = plan::calibrate(*world, job.settings);
    if (world->rank() == 0) write_result(job, found);
    world->group()->barrier("the description is written");
  });
  return static_cast<Exit>(code);
}

}  // namespace

const Command kCalibrateCommand{
    .name = "calibrate",
    .summary = "measures this machine, for the times of a plan",
    .about = R"(usage: floe calibrate [FILE] [--device cpu|cuda] [--like NAME] [--force]
       floe launch -n 2 -- calibrate [FILE]      (or torchrun, srun, mpirun)

Measures what this machine computes and copies in a second, within about half a minute, and writes it as
the description that floe plan --gpu takes: products in bf16, fp32 and fp8, attention, passes over
memory, the optimizer's pass, copies to the host, kernels and their issue, memory. On several ranks also
collectives inside of a node and, where ranks lie on several, between nodes. Rank 0 writes FILE (without
one it prints), when everything is measured. The file says in comments what was measured, when and how,
and what is taken from the machine it is like.
)",
    .options =
        {
            {"--device", "cpu|cuda", "what to measure (the GPU, where there is one)"},
            {"--like", "h200|h100|a100|cpu",
             "a machine that floe knows, for what is not measured (the nearest)"},
            {"--name", "NAME", "what the machine is called in tables (the device's name)"},
            {"--rounds", "N", "of which the median counts (5)"},
            {"--force", "", "replace FILE"},
        },
    .closing = R"(  floe calibrate here.yaml
  floe launch -n 8 -- calibrate node.yaml
  floe plan my.yaml world=8 --gpu node.yaml --batch 64x32x1,32x256x6
)",
    .words = "FILE",
    .run = run_calibrate,
};

}  // namespace floe::cli
