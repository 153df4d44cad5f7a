#include "floe/observe/diagnostics/findings.h"

#include <algorithm>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/io/file/file.h"

namespace floe::diagnostics {

using Json = nlohmann::ordered_json;

void Findings::add_memory(std::int64_t batch, int rank, const std::vector<PointMemory>& points) {
  for (const PointMemory& at : points)
    memory.push_back({{"batch", batch},
                      {"point", name_of(at.point)},
                      {"rank", rank},
                      {"current_bytes", at.current_bytes},
                      {"peak_bytes", at.peak.bytes},
                      {"hint", peak_hint(at.peak)}});
}

void Findings::add_note(const std::string& note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

std::string Findings::uneven_memory() const {
  std::map<int, std::int64_t> peaks;
  for (const Json& at : memory) {
    std::int64_t& peak = peaks[at.at("rank").get<int>()];
    peak = std::max(peak, at.at("peak_bytes").get<std::int64_t>());
  }
  if (peaks.empty()) return "";
  const auto [least, most] = std::minmax_element(
      peaks.begin(), peaks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (10 * most->second <= 11 * least->second) return "";
  return str("ranks differ in memory: rank ", most->first, " peaks at ", format_bytes(most->second),
             ", rank ", least->first, " at ", format_bytes(least->second),
             "; their batches differ in tokens or images, and the largest one decides what fits");
}

Json Findings::json() const {
  Json by_rank = Json::array();
  for (const RankBytes& bytes : ranks)
    by_rank.push_back({{"rank", bytes.rank},
                       {"trainable_bytes", bytes.trainable_bytes},
                       {"frozen_bytes", bytes.frozen_bytes},
                       {"padding_bytes", bytes.padding_bytes}});
  return {{"strategy", strategy}, {"units", units}, {"ranks", std::move(by_rank)},
          {"memory", memory},     {"notes", notes}, {"times", times}};
}

void Findings::write(const std::string& path) const {
  write_file_atomically(path, json().dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::vector<std::string> memory_lines(std::int64_t batch, const std::vector<PointMemory>& points) {
  using enum Align;
  Table table({left, right, right, left}, 2);
  table.row({str("batch ", batch), "now", "peak", "of the peak"});
  for (const PointMemory& at : points)
    table.row({name_of(at.point), format_bytes(at.current_bytes), format_bytes(at.peak.bytes),
               peak_hint(at.peak)});
  return table.lines();
}

}  // namespace floe::diagnostics
