// Passes a rank's output on, whole lines at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace floe::comm {

// Lines of several ranks never mix inside a line: only complete lines are written, each with the
// prefix in front. A line that never ends is cut after 64 KiB.
class LineForwarder {
 public:
  // Writes to the descriptor `to`, which stays the caller's; remembers the last `num_kept` lines.
  LineForwarder(int to, std::string prefix, std::size_t num_kept);

  void feed(std::string_view bytes);
  // Writes an unfinished last line; call it when no more will come.
  void finish();

  const std::deque<std::string>& last_lines() const { return kept_; }

 private:
  void add_line(std::string_view line);
  void write_out();

  int to_;
  std::string prefix_;
  std::size_t num_kept_;
  std::string unfinished_;
  std::string out_;
  std::deque<std::string> kept_;
};

}  // namespace floe::comm
