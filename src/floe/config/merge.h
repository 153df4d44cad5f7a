// One tree over another.
#pragma once

#include "floe/config/value.h"

namespace floe::config {

// Maps merge key by key; anything else in `over` (lists and nulls too) replaces what was there. Each
// value keeps the origin of the layer that it came from.
void merge(Value& base, const Value& over);

}  // namespace floe::config
