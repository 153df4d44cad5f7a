// The one logger: lines to stderr, the rank in front when there are several, optionally copied to
// a file. Results of commands go to stdout instead, metrics to JSON lines.
// Threads: every function may be called from any thread; a line is never torn.
#pragma once

#include <string>
#include <string_view>

#include "floe/core/str.h"

namespace floe::log {

enum class Level { debug, info, warn, error };

// Lines below the level are dropped. The start value comes from FLOE_LOG (debug, info, warn,
// error).
void set_level(Level level);
Level level();

// From now on lines begin with "[rank/world]"; world 1 means no prefix, and so does
// FLOE_LOG_RANK=0, which `floe launch` sets because it puts the rank in front of every line itself.
void set_rank(int rank, int world);

// The name of this host, which lines carry, with the date, where ranks are on several hosts; empty:
// they are not.
void set_host(const std::string& host);

// Copies every line to this file as well (appending), with date, host and rank in front, whatever
// stands there on stderr; an empty path stops that.
void set_file(const std::string& path);

void write(Level level, std::string_view line);

// Shows this text as the last line of stderr, in place of the one before; log lines appear above
// it. An empty text takes it away. Only for a stderr that is a terminal, and only for text that
// fits into one of its rows.
void set_status_line(std::string_view text);

template <class... Parts>
void debug(const Parts&... parts) {
  if (level() <= Level::debug) write(Level::debug, str(parts...));
}
template <class... Parts>
void info(const Parts&... parts) {
  if (level() <= Level::info) write(Level::info, str(parts...));
}
template <class... Parts>
void warn(const Parts&... parts) {
  if (level() <= Level::warn) write(Level::warn, str(parts...));
}
template <class... Parts>
void error(const Parts&... parts) {
  write(Level::error, str(parts...));
}

}  // namespace floe::log
