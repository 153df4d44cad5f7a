#include <csignal>
#include <exception>
#include <iostream>

#include "floe/cli/command.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of writing it
  try {
    return static_cast<int>(floe::cli::run_command_line({argv + 1, argv + argc}));
  } catch (const floe::Error& error) {
    std::cerr << "floe: " << error.what() << std::endl;
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    std::cerr << "floe: unexpected error: " << error.what() << std::endl;
    return static_cast<int>(floe::Exit::failed);
  }
}
