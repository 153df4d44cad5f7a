#pragma once

#include <string>

namespace floe {

// This machine's name; "localhost" where it has none.
const std::string& host_name();

// What differs between systems that run, and between two starts of one; empty where it is not told.
std::string boot_id();

}  // namespace floe
