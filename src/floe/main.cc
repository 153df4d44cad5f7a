#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "floe/cli/command.h"

namespace {

// The number of a standard stream that was closed before the start is that of the next file or
// socket that is opened, and what is logged would be written into it. One takes its place that
// gives and takes nothing: reading and writing fail as they do without it.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF)
      open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Whoever has closed the other end of a pipe wants no more of it, so that nothing is lost.
bool reader_has_left() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

int run(const std::vector<std::string>& words) {
  try {
    const floe::Exit done = floe::cli::run_command_line(words);
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

// Everything of floe's own is gone and written by now. What is left are LibTorch's tables of
// operators, whose destruction takes a quarter of the time of a short command. Profilers and the
// like, which are put into a process by these variables, write what they have seen in between.
[[noreturn]] void leave(int status) {
  if (std::getenv("LD_PRELOAD") || std::getenv("CUDA_INJECTION64_PATH")) std::exit(status);
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace

int main(int argc, char** argv) {
  fill_closed_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of writing it
  leave(run({argv + 1, argv + argc}));
}
