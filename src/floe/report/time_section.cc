// Where the time of a step goes, unit by unit.
#include <algorithm>
#include <cstdio>

#include "floe/core/str.h"
#include "floe/report/html.h"
#include "floe/report/sections.h"

namespace floe::report {
namespace {

constexpr std::size_t kMostRows = 100;

std::string cell(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", seconds * 1e3);
  return str("<td class='number'>", text, "</td>");
}

}  // namespace

std::string time_section(const RunFolder& run) {
  if (!run.diagnostics || run.diagnostics->times.empty()) return "";
  std::vector<UnitTime> times = run.diagnostics->times;
  std::stable_sort(times.begin(), times.end(),
                   [](const UnitTime& a, const UnitTime& b) { return a.sum_s() > b.sum_s(); });
  std::string html =
      str("<section><h2>Time per unit</h2><p class='note'>Milliseconds of a step on rank 0, "
          "the longest first",
          times.size() > kMostRows ? str("; ", kMostRows, " of ", times.size()) : "",
          ".</p><div class='scroll'><table id='times'><tr><th>unit</th><th>class</th>");
  for (const char* name : {"gather wait", "forward", "backward", "reduce wait"})
    html += str("<th class='number'>", name, "</th>");
  html += "</tr>";
  if (times.size() > kMostRows) times.resize(kMostRows);
  for (const UnitTime& time : times)
    html += str("<tr><td>", escaped(time.unit), "</td><td>", escaped(time.class_name), "</td>",
                cell(time.gather_wait_s), cell(time.forward_s), cell(time.backward_s),
                cell(time.reduce_wait_s), "</tr>");
  return html + "</table></div></section>";
}

}  // namespace floe::report
