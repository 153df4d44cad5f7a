// Numbers and texts as JSON has them.
#pragma once

#include <string>

namespace floe::metrics {

// The shortest decimal that reads back as the same double. What is not finite becomes what Python's
// json writes and reads: NaN, Infinity, -Infinity. That is no JSON; metrics.jsonl avoids it.
std::string number_text(double value);
// In quotes; bytes that are not UTF-8 become U+FFFD.
std::string quoted_text(const std::string& text);

}  // namespace floe::metrics
