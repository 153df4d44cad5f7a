// Named moments of a save, between which a crash must leave every older checkpoint as it was.
//
// Note [Commit points]
// A program that tests crashes links an object that sets `at_commit_point` before main and ends the
// process the hard way at the point of its choice. No library and no command sets it.
#pragma once

namespace floe::checkpoint {

// Called with the name of every point that a save passes, on the thread that saves.
using CommitHook = void (*)(const char* point);
inline constinit CommitHook at_commit_point = nullptr;

inline void commit_point(const char* point) {
  if (at_commit_point) at_commit_point(point);
}

}  // namespace floe::checkpoint
