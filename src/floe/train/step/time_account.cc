#include "floe/train/step/time_account.h"

#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "floe/core/str.h"

namespace floe::train {
namespace {

constexpr std::array<const char*, TimeAccount::kNumParts> kNames{
    "set-up", "data",           "steps", "skipped steps", "validation", "waiting for saves",
    "saving", "phase switches", "other"};

std::string one_digit(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", seconds);
  return text;
}

}  // namespace

double TimeAccount::Times::wall() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

TimeAccount::Times& TimeAccount::Times::operator+=(const Times& more) {
  for (std::size_t part = 0; part < kNumParts; ++part) seconds[part] += more.seconds[part];
  return *this;
}

std::string TimeAccount::Times::text() const {
  std::vector<std::string> parts;
  for (std::size_t part = 0; part < kNumParts; ++part)
    if (seconds[part] >= 0.05) parts.push_back(str(kNames[part], " ", one_digit(seconds[part])));
  return str(one_digit(wall()), " s", parts.empty() ? "" : ": ", join(parts, ", "));
}

double TimeAccount::lap(Part part) {
  const double seconds = watch_.lap();
  now_.seconds[part] += seconds;
  return seconds;
}

void TimeAccount::move(Part from, Part to, double seconds) {
  now_.seconds[from] -= seconds;
  now_.seconds[to] += seconds;
}

TimeAccount::Times TimeAccount::take() {
  taken_ += now_;
  return std::exchange(now_, {});
}

TimeAccount::Times TimeAccount::total() const {
  Times all = taken_;
  all += now_;
  return all;
}

}  // namespace floe::train
