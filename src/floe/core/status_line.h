// A line that stays below the log lines of a terminal and renews itself.
#pragma once

#include <string_view>

namespace floe::log {

// Shows this text as the last line of stderr, in place of the one before; log lines appear above
// it. An empty text takes it away. Only for a stderr that is a terminal, and only for text that fits
// into one of its rows. Any thread.
void set_status_line(std::string_view text);

}  // namespace floe::log
