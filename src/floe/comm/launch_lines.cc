#include "floe/comm/launch_lines.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace floe::comm {
namespace {

constexpr std::size_t kLongestLine = 64 * 1024;

}  // namespace

LineForwarder::LineForwarder(int to, std::string prefix, std::size_t num_kept)
    : to_(to), prefix_(std::move(prefix)), num_kept_(num_kept) {}

void LineForwarder::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    unfinished_.append(bytes.substr(0, end));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end != std::string_view::npos || unfinished_.size() >= kLongestLine)
      add_line(std::exchange(unfinished_, {}));
  }
  write_out();
}

void LineForwarder::finish() {
  if (!unfinished_.empty()) add_line(std::exchange(unfinished_, {}));
  write_out();
}

void LineForwarder::add_line(std::string_view line) {
  out_.append(prefix_).append(line).append("\n");
  if (num_kept_ == 0) return;
  if (kept_.size() == num_kept_) kept_.pop_front();
  kept_.emplace_back(line);
}

void LineForwarder::write_out() {
  std::string_view rest = out_;
  while (!rest.empty()) {
    const ssize_t written = write(to_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{to_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      break;  // nobody reads any more; the ranks go on
    }
  }
  out_.clear();
}

}  // namespace floe::comm
