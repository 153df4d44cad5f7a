#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <iostream>

#include "floe/cli/command.h"

namespace {

// Whoever has closed the other end of a pipe wants no more of it, so that nothing is lost.
bool reader_has_left() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of writing it
  try {
    const floe::Exit done = floe::cli::run_command_line({argv + 1, argv + argc});
    if (!std::cout.flush() && !reader_has_left())
      throw floe::Error("the result could not be written to standard output; is there room?");
    return static_cast<int>(done);
  } catch (const floe::Error& error) {
    std::cerr << "floe: " << error.what() << std::endl;
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    std::cerr << "floe: unexpected error: " << error.what() << std::endl;
    return static_cast<int>(floe::Exit::failed);
  }
}
