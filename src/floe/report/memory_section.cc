// Memory at the points of the first batches, and what each rank holds between steps.
#include <algorithm>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/report/html.h"
#include "floe/report/sections.h"

namespace floe::report {
namespace {

// The ranks at one point of one batch; the page shows the one that needs most.
struct PointRow {
  const MemoryPoint* most = nullptr;
  std::int64_t least_peak_bytes = 0;
  std::int64_t num_ranks = 0;
};

std::vector<PointRow> rows_of(const std::vector<MemoryPoint>& points) {
  std::vector<PointRow> rows;
  std::map<std::pair<std::int64_t, std::string>, std::size_t> places;
  for (const MemoryPoint& point : points) {
    const auto [place, is_new] = places.try_emplace({point.batch, point.point}, rows.size());
    if (is_new) rows.push_back({&point, point.peak_bytes, 0});
    PointRow& row = rows[place->second];
    if (point.peak_bytes > row.most->peak_bytes) row.most = &point;
    row.least_peak_bytes = std::min(row.least_peak_bytes, point.peak_bytes);
    ++row.num_ranks;
  }
  return rows;
}

std::string point_table(const std::vector<MemoryPoint>& points) {
  const std::vector<PointRow> rows = rows_of(points);
  std::int64_t most = 1;
  for (const PointRow& row : rows) most = std::max(most, row.most->peak_bytes);
  std::string html =
      "<p class='note'>The rank with the highest peak at each point.</p><div class='scroll'><table "
      "id='memory'><tr><th class='number'>batch</th><th>point</th><th class='number'>rank</th><th "
      "class='number'>held</th><th class='number'>peak</th><th></th><th class='number'>least peak "
      "of a "
      "rank</th><th>what it points to</th></tr>";
  for (const PointRow& row : rows)
    html += str("<tr><td class='number'>", row.most->batch, "</td><td>", escaped(row.most->point),
                "</td><td class='number'>", row.most->rank, "</td><td class='number'>",
                format_bytes(row.most->current_bytes), "</td><td class='number'>",
                format_bytes(row.most->peak_bytes),
                "</td><td class='bar'><div style='width:", row.most->peak_bytes * 100 / most,
                "%'></div></td><td class='number'>", format_bytes(row.least_peak_bytes),
                "</td><td>", escaped(row.most->hint), "</td></tr>");
  return html + "</table></div>";
}

std::string rank_table(const std::vector<RankBytes>& ranks) {
  std::string html =
      "<h3>Parameters per rank</h3><div class='scroll'><table id='ranks'><tr><th "
      "class='number'>rank"
      "</th><th class='number'>trainable</th><th class='number'>frozen</th><th class='number'>of "
      "both, padding</th></tr>";
  for (const RankBytes& rank : ranks)
    html += str("<tr><td class='number'>", rank.rank, "</td><td class='number'>",
                format_bytes(rank.trainable_bytes), "</td><td class='number'>",
                format_bytes(rank.frozen_bytes), "</td><td class='number'>",
                format_bytes(rank.padding_bytes), "</td></tr>");
  return html + "</table></div>";
}

}  // namespace

std::string memory_section(const RunFolder& run) {
  if (!run.diagnostics) return "";
  std::string html = "<section><h2>Memory by phase</h2>";
  html += run.diagnostics->memory.empty()
              ? "<p class='none'>No batch was measured (log.diagnostics.batches).</p>"
              : point_table(run.diagnostics->memory);
  if (!run.diagnostics->ranks.empty()) html += rank_table(run.diagnostics->ranks);
  return html + "</section>";
}

}  // namespace floe::report
