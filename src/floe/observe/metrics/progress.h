// How far a run is, for the person who watches it: on a terminal one line on stderr that renews
// itself below the log lines, elsewhere a plain log line every few steps.
//
//   step 120/1000  4 min 10 s left  loss_laion 2.4512  loss_mmc4 3.1055  48.1k tokens/s
//
// (here cut: samples per second and rank, memory and skipped batches follow as far as they fit).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/core/stopwatch.h"

namespace floe::observe {

// What one step has to show; what is 0 or empty is left out.
struct Progress {
  std::int64_t step = 0;
  std::vector<std::pair<std::string, double>> losses;                       // {"loss_laion", 2.45}
  double tokens_per_second = 0;                                             // of all ranks
  std::vector<std::pair<std::string, double>> samples_per_second_per_rank;  // {"laion", 12.3}
  std::int64_t memory_bytes = 0;                                            // this rank's peak
  std::int64_t skipped = 0;                                                 // batches so far
};

class ProgressLine {
 public:
  // Steps first_step + 1 ... total_steps are ahead. every_steps counts for plain lines only.
  ProgressLine(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps);
  // Takes the line away from the terminal.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void set_total_steps(std::int64_t total_steps) { total_steps_ = total_steps; }
  // After every step.
  void update(const Progress& progress);

 private:
  double seconds_left(std::int64_t step) const;

  std::int64_t first_step_, total_steps_, every_steps_;
  bool terminal_;
  Stopwatch watch_;
  std::optional<double> shown_at_s_;                   // when the terminal's line was last renewed
  std::deque<std::pair<std::int64_t, double>> ticks_;  // step and time of the latest steps
};

// How far something is that is counted and has no known end, while it lasts: on a terminal a line
// that renews itself, elsewhere a log line every `every_s` seconds.
//
//   CountLine line("validation", "batch");
//   while (…) line.update(++done);            // "validation: 120 batches, 31 s"
class CountLine {
 public:
  CountLine(std::string what, std::string noun, double every_s = 30);
  ~CountLine();
  CountLine(const CountLine&) = delete;
  CountLine& operator=(const CountLine&) = delete;

  void update(std::int64_t done);

 private:
  std::string what_, noun_;
  double every_s_;
  bool terminal_;
  Stopwatch watch_;
  double shown_at_s_ = 0;
};

// One line of at most `width` characters (0: any width). Parts at the end go first when it is too
// long.
std::string progress_text(const Progress& progress, std::int64_t total_steps, double seconds_left,
                          std::size_t width);
// "4 s", "4 min 10 s", "2 h 05 min", "3 d 4 h"
std::string format_duration(double seconds);

}  // namespace floe::observe
