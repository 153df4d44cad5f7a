// Where every thread of this process is.
#pragma once

#include <string>
#include <vector>

namespace floe {

// A block of lines per thread: its number and name, then its frames, innermost first. Functions of
// shared libraries have their names; those of the program are offsets, which
// `addr2line -Cfe PROGRAM OFFSET` names. A thread that does not answer within a second is said to.
// Must not be called from a signal handler.
std::vector<std::string> stacks_of_all_threads();

}  // namespace floe
