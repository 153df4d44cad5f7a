#include "floe/report/rank_logs.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <filesystem>
#include <fstream>

namespace floe::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNotable = 50, kTail = 20;
constexpr std::size_t kMostLineBytes = 2000;
constexpr std::size_t kMostLogs = 1024;

// "rank_12.log" -> 12, anything else -> -1
std::int64_t rank_of(const std::string& name) {
  if (!name.starts_with("rank_") || !name.ends_with(".log")) return -1;
  std::int64_t rank = -1;
  const char* end = name.data() + name.size() - 4;
  const auto [stopped, error] = std::from_chars(name.data() + 5, end, rank);
  return error == std::errc() && stopped == end ? rank : -1;
}

RankLog read_log(const fs::path& path, std::int64_t rank) {
  RankLog log{.rank = rank};
  std::deque<std::string> tail;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  const auto end_line = [&] {
    ++log.num_lines;
    const bool warning = line.find(" warning: ") != std::string::npos;
    const bool error = line.find(" error: ") != std::string::npos;
    log.num_warnings += warning;
    log.num_errors += error;
    if ((warning || error) && log.notable.size() < kMostNotable) log.notable.push_back(line);
    tail.push_back(line);
    if (tail.size() > kTail) tail.pop_front();
    line.clear();
  };
  auto* buffer = file.rdbuf();
  int last = '\n';
  for (int c = buffer->sbumpc(); c != EOF; c = buffer->sbumpc()) {
    if (c == '\n')
      end_line();
    else if (line.size() < kMostLineBytes)
      line.push_back(static_cast<char>(c));
    last = c;
  }
  if (last != '\n') end_line();
  log.tail.assign(tail.begin(), tail.end());
  return log;
}

}  // namespace

std::vector<RankLog> read_rank_logs(const std::string& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (const std::int64_t rank = rank_of(entry.path().filename().string());
        rank >= 0 && entry.is_regular_file())
      found.emplace_back(rank, entry.path());
  std::sort(found.begin(), found.end());
  if (found.size() > kMostLogs) found.resize(kMostLogs);

  std::vector<RankLog> logs;
  for (const auto& [rank, path] : found) logs.push_back(read_log(path, rank));
  return logs;
}

}  // namespace floe::report
