// Writing pickles that every Python 3 reads, and torch.load(weights_only=True) as far as it knows the
// names in them.
//
// Protocol 2, which torch.save uses. Values that are shared are written once and stay one object in
// Python; so are equal texts and global names.
#pragma once

#include <string>

#include "floe/io/pickle_value.h"

namespace floe::pickle {

// Throws Error for a text that is not UTF-8 and for values nested deeper than kMostDepth.
std::string write(const Value& value);

}  // namespace floe::pickle
