// Reading pickles of protocols 2 to 5 without running them.
//
// Everything is checked: every length against the bytes that are there, every opcode against the
// stack. Memory stays within a fixed multiple of the input. What is refused: opcodes of protocols 0
// and 1 (but GLOBAL), the extension registry, out-of-band buffers, cycles, and nesting deeper than
// kMostDepth. Each defect is one DataError that names the file, the byte and the opcode.
#pragma once

#include <string>
#include <string_view>

#include "floe/io/pickle_value.h"

namespace floe::pickle {

// The value of the one pickle that `bytes` hold; `file` is for messages.
Value read(std::string_view bytes, const std::string& file);

}  // namespace floe::pickle
