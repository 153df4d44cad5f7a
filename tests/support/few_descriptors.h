// A process that has no descriptor left, as one that has opened too many files.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "floe/core/error.h"

namespace floe::test {

#ifdef __SANITIZE_ADDRESS__
// The undefined-behaviour sanitizer opens a pipe to look at a vptr, and ends the program where it
// gets none.
constexpr bool kMayLackDescriptors = false;
#else
constexpr bool kMayLackDescriptors = true;
#endif

// While it lives, nothing can be opened.
class FewDescriptors {
 public:
  FewDescriptors() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    require(next >= 0 && ::getrlimit(RLIMIT_NOFILE, &before_) == 0, "no descriptor to begin with");
    const rlimit few{static_cast<rlim_t>(next), before_.rlim_max};
    require(::setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace floe::test
