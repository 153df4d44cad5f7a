#include "floe/observe/metrics/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "floe/core/bytes.h"
#include "floe/core/log.h"
#include "floe/core/str.h"

namespace floe::observe {
namespace {

constexpr std::size_t kWindowSteps = 50;     // of the moving average
constexpr double kRenewalS = 0.1;            // faster than this nobody reads
constexpr std::size_t kUsualWidth = 80;      // of a terminal that does not tell
constexpr std::string_view kBetween = "  ";  // parts of the line

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualWidth;
  return size.ws_col;
}

// Characters rather than bytes: a name need not be ASCII.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

template <class... Numbers>
std::string printed(const char* format, Numbers... numbers) {
  char text[64];
  std::snprintf(text, sizeof text, format, numbers...);
  return text;
}

// "948", "48.1k", "1.23M"
std::string short_rate(double rate) {
  if (rate >= 1e6) return printed("%.2fM", rate / 1e6);
  if (rate >= 1e4) return printed("%.1fk", rate / 1e3);
  return rate >= 100 ? printed("%.0f", rate) : printed("%.3g", rate);
}

std::vector<std::string> parts_of(const Progress& progress, std::int64_t total_steps,
                                  double seconds_left) {
  std::vector<std::string> parts{str("step ", progress.step, "/", total_steps)};
  if (progress.step < total_steps && std::isfinite(seconds_left) && seconds_left >= 0)
    parts.push_back(format_duration(seconds_left) + " left");
  for (const auto& [name, loss] : progress.losses)
    parts.push_back(name + " " + printed("%.4f", loss));
  if (progress.tokens_per_second > 0)
    parts.push_back(short_rate(progress.tokens_per_second) + " tokens/s");
  for (const auto& [source, rate] : progress.samples_per_second_per_rank)
    parts.push_back(source + " " + short_rate(rate) + " samples/s per rank");
  if (progress.memory_bytes > 0) parts.push_back("memory " + format_bytes(progress.memory_bytes));
  if (progress.skipped > 0)
    parts.push_back(
        str(progress.skipped, progress.skipped == 1 ? " batch" : " batches", " skipped"));
  return parts;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e12));
  if (s < 60) return str(s, " s");
  if (s < 3600)
    return printed("%ld min %02ld s", static_cast<long>(s / 60), static_cast<long>(s % 60));
  if (s < 86400)
    return printed("%ld h %02ld min", static_cast<long>(s / 3600), static_cast<long>(s / 60 % 60));
  return str(s / 86400, " d ", s / 3600 % 24, " h");
}

std::string progress_text(const Progress& progress, std::int64_t total_steps, double seconds_left,
                          std::size_t width) {
  std::string line;
  for (const std::string& part : parts_of(progress, total_steps, seconds_left)) {
    const std::string longer = line.empty() ? part : str(line, kBetween, part);
    if (width > 0 && width_of(longer) > width) break;
    line = longer;
  }
  return line;
}

ProgressLine::ProgressLine(std::int64_t first_step, std::int64_t total_steps,
                           std::int64_t every_steps)
    : first_step_(first_step),
      total_steps_(total_steps),
      every_steps_(std::max<std::int64_t>(every_steps, 1)),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (terminal_) log::set_status_line("");
}

double ProgressLine::seconds_left(std::int64_t step) const {
  const auto& [from_step, from_s] = ticks_.front();
  const auto& [to_step, to_s] = ticks_.back();
  if (to_step <= from_step) return NAN;
  return (to_s - from_s) / static_cast<double>(to_step - from_step) *
         static_cast<double>(total_steps_ - step);
}

void ProgressLine::update(const Progress& progress) {
  ticks_.emplace_back(progress.step, watch_.seconds());
  if (ticks_.size() > kWindowSteps + 1) ticks_.pop_front();
  const bool last = progress.step >= total_steps_;
  const double left_s = seconds_left(progress.step);

  if (!terminal_) {
    const bool first = progress.step == first_step_ + 1;
    if (first || last || progress.step % every_steps_ == 0)
      log::info(progress_text(progress, total_steps_, left_s, 0));
    return;
  }
  if (!last && shown_at_s_ && ticks_.back().second - *shown_at_s_ < kRenewalS) return;
  shown_at_s_ = ticks_.back().second;
  // The last column stays free: some terminals wrap as soon as it is filled.
  log::set_status_line(progress_text(progress, total_steps_, left_s, terminal_width() - 1));
  if (!last) return;
  log::set_status_line("");
  log::info(progress_text(progress, total_steps_, left_s, 0));
}

CountLine::CountLine(std::string what, std::string noun, double every_s)
    : what_(std::move(what)),
      noun_(std::move(noun)),
      every_s_(every_s),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

CountLine::~CountLine() {
  if (terminal_) log::set_status_line("");
}

void CountLine::update(std::int64_t done) {
  const double now = watch_.seconds();
  if (now - shown_at_s_ < (terminal_ ? kRenewalS : every_s_)) return;
  shown_at_s_ = now;
  const std::string text = str(what_, ": ", counted(done, noun_), ", ", format_duration(now));
  if (terminal_)
    log::set_status_line(text.substr(0, terminal_width() - 1));
  else
    log::info(text);
}

}  // namespace floe::observe
