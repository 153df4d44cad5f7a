// What the main program of tests does before the first of them.
#pragma once

#include <functional>

namespace floe::test {

// Empty, unless something that is linked sets it while static objects are made.
inline std::function<void()>& before_tests() {
  static std::function<void()> what;
  return what;
}

}  // namespace floe::test
