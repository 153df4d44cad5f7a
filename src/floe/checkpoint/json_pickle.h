// JSON as Python has it, and back: for what trainers keep beside tensors.
#pragma once

#include <nlohmann/json.hpp>

#include "floe/io/pickle_value.h"

namespace floe::checkpoint {

// Objects become dicts, arrays lists.
pickle::Value to_pickle(const nlohmann::json& value);
// Tensors and other objects become null.
nlohmann::json to_json(const pickle::Value& value);

}  // namespace floe::checkpoint
