#pragma once

#include <gtest/gtest.h>

#include <string>

#include "floe/core/error.h"

namespace floe::test {

// The message of the ConfigError that the action throws.
template <class Action>
std::string config_error(const Action& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(no ConfigError)";
}

inline void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << "expected: " << part << "\nfound:    " << text;
}

}  // namespace floe::test
