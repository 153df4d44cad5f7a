// The memory counter for other languages: a library that a Python process with PyTorch loads with
// ctypes, so that the same counter measures every system of a benchmark.
#include "floe/observe/diagnostics/memory_counter.h"

using floe::diagnostics::MemoryCounter;

extern "C" {
void floe_memory_install() { MemoryCounter::install(); }
std::int64_t floe_memory_current() { return MemoryCounter::install().current_bytes(); }
std::int64_t floe_memory_peak() { return MemoryCounter::install().peak_bytes(); }
void floe_memory_reset_peak() { MemoryCounter::install().reset_peak(); }
}
