#include "floe/core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>

#include "floe/core/host.h"
#include "floe/core/utf8.h"

namespace floe::log {
namespace {

Level level_from_environment() {
  const char* text = std::getenv("FLOE_LOG");
  const std::string_view value = text ? text : "info";
  if (value == "debug") return Level::debug;
  if (value == "warn") return Level::warn;
  if (value == "error") return Level::error;
  return Level::info;
}

struct Sink {
  std::mutex mutex;
  std::string prefix, full_prefix;  // the rank; in the file it is always there
  std::string host;                 // where there are several
  std::string status;               // shown below the lines; empty: none
  std::unique_ptr<FILE, int (*)(FILE*)> file{nullptr, &std::fclose};
};

Sink& sink() {
  static Sink* instance = new Sink;  // never destroyed: threads may log while the process ends
  return *instance;
}

std::atomic<Level>& current_level() {
  static std::atomic<Level> value{level_from_environment()};
  return value;
}

// Back to the first column, and away with what stands in the row.
constexpr std::string_view kClearRow = "\r\x1b[K";

const char* mark(Level level) {
  switch (level) {
    case Level::debug: return "debug: ";
    case Level::info: return "";
    case Level::warn: return "warning: ";
    case Level::error: return "error: ";
  }
  return "";
}

}  // namespace

void set_level(Level level) { current_level() = level; }
Level level() { return current_level(); }

void set_rank(int rank, int world) {
  const char* shown = std::getenv("FLOE_LOG_RANK");
  const bool wanted = world > 1 && std::string_view(shown ? shown : "1") != "0";
  std::lock_guard lock(sink().mutex);
  sink().full_prefix = world > 1 ? str("[", rank, "/", world, "] ") : "";
  sink().prefix = wanted ? sink().full_prefix : "";
}

void set_host(const std::string& host) {
  std::lock_guard lock(sink().mutex);
  sink().host = host;
}

void set_file(const std::string& path) {
  std::lock_guard lock(sink().mutex);
  sink().file.reset(path.empty() ? nullptr : std::fopen(path.c_str(), "a"));
}

void write(Level level, std::string_view line) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S ", &parts);
  constexpr std::size_t kClock = 11;  // behind the day

  Sink& s = sink();
  std::lock_guard lock(s.mutex);
  // Names of files may have any bytes; a log is UTF-8.
  const std::string said = str(mark(level), shown_bytes(line), "\n");
  const std::string place = s.host.empty() ? "" : s.host + " ";
  const std::string text = str(s.host.empty() ? date + kClock : date, place, s.prefix, said);
  const std::string shown = s.status.empty() ? text : str(kClearRow, text, s.status);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
  if (s.file) {
    const std::string kept =
        str(date, s.host.empty() ? host_name() + " " : place, s.full_prefix, said);
    std::fwrite(kept.data(), 1, kept.size(), s.file.get());
    std::fflush(s.file.get());
  }
}

void set_status_line(std::string_view text) {
  Sink& s = sink();
  std::lock_guard lock(s.mutex);
  if (s.status.empty() && text.empty()) return;
  s.status = text;
  const std::string shown = str(kClearRow, text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

}  // namespace floe::log
