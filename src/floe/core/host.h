#pragma once

#include <string>

namespace floe {

// This machine's name; "localhost" where it has none.
const std::string& host_name();

}  // namespace floe
