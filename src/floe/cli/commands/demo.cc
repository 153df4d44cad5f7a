// floe demo: examples/demo.sh, which is installed with the program, in its own place.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

Exit run_demo(const Args& args) {
  const Options options(kDemoCommand, args);
  require<ConfigError>(options.words().size() <= 1,
                       "demo takes at most one folder to work in: floe demo [FOLDER]");
  const fs::path script = fs::path(own_configs()).parent_path() / "examples/demo.sh";
  std::error_code ignored;
  require<ConfigError>(fs::exists(script, ignored),
                       "demo: the files of the demonstration are not beside this program; install "
                       "floe again, or use './run demo' in its sources");
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  require<ConfigError>(fs::exists(programs / "demo_data", ignored),
                       "demo: the program demo_data is ", "not in '", programs.string(),
                       "'; in the sources './run demo' builds it");
  setenv("FLOE_BIN_DIR", programs.c_str(), 1);
  const std::string folder = options.words().empty() ? "." : options.words().front();
  const std::array<const char*, 4> words{"bash", script.c_str(), folder.c_str(), nullptr};
  std::cout.flush();
  execvp(words[0], const_cast<char**>(words.data()));
  throw Error(str("demo: bash cannot start: ", std::strerror(errno)));
}

}  // namespace

const Command kDemoCommand{
    .name = "demo",
    .summary = "a small model trained, stopped, resumed, exported and used, in a minute or two",
    .about = R"(usage: floe demo [FOLDER]

Shows floe at work on two ranks of this machine's processor: makes a small data set, trains a language
model and then a Flamingo with it, kills that run and goes on with it, exports what was trained, asks
the model what a picture shows, and makes a page about the run. Each command is printed before it
runs. All files go to FOLDER/runs (FOLDER: the current one if left out), into the folders demo,
demo-lm and demo-data; those of an earlier demo are replaced.

  floe demo
  floe demo /tmp/first-look
)",
    .words = "FOLDER",
    .run = run_demo,
};

}  // namespace floe::cli
