// How Python writes values into text: a sentence of a document may be a number or a list, and then
// its str() becomes part of what is trained on.
#pragma once

#include <string>

#include "floe/data/python_json.h"

namespace floe::data {

// str(value): a string as it is, None, True, 1.5, ['a', None], {'k': 1}.
std::string python_str(const Json& value);

}  // namespace floe::data
