// The commands of floe in another program.
#include <cstdio>

#include "floe/cli/command.h"

int main(int argc, char** argv) try {
  return static_cast<int>(floe::cli::run_command_line({argv + 1, argv + argc}));
} catch (const floe::Error& error) {
  std::fprintf(stderr, "whole: %s\n", error.what());
  return static_cast<int>(error.exit());
}
