// The one family of exceptions. A message is one sentence that says what went wrong, where
// (name, rank, file, key), what was expected and found, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>

#include "floe/core/str.h"

namespace floe {

// Process exit codes, the same for every command. `stopped`: a signal asked for the end and all is
// saved, so that the same command goes on; 75 is what sysexits.h has for "try again".
enum class Exit : int { done = 0, failed = 1, usage = 2, stopped = 75 };

// What the log of a rank says that ends because of another one, in front of that one's cause.
inline constexpr const char* kBecauseOf = "(the first failure was that of ";

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, Exit exit = Exit::failed)
      : std::runtime_error(message), exit_(exit) {}
  // What a process whose main ends with this error returns.
  Exit exit() const noexcept { return exit_; }

 private:
  Exit exit_;
};

// Bad usage or configuration: the user can mend it before anything runs.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(message, Exit::usage) {}
};

// Something read from outside (tar, image, JSON, tensor file) is not what it claims to be.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(message) {}
};

// A collective or the rendezvous failed; the group must not be used again.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message) : Error(message) {}
};

class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message) : Error(message) {}
};

// The engine was used against its rules (ranks that disagree, a parameter read while released).
class ShardError : public Error {
 public:
  explicit ShardError(const std::string& message) : Error(message) {}
};

// Throws ErrorType with the parts joined when the condition does not hold.
template <class ErrorType = Error, class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw ErrorType(floe::str(parts...));
}

}  // namespace floe
