// The version of project() in CMakeLists.txt; a test compares them.
#pragma once

#include <string_view>

namespace floe {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace floe
