// The folder RUN/checkpoints: how something becomes visible in it, and what stays.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpoint_config.h"

namespace floe::checkpoint {

// Names inside of the folder. What begins with kTemporary is unfinished and nobody's.
constexpr const char* kTemporary = ".tmp-";
constexpr const char* kEmergencyPart = ".emergency-";  // a folder per start of the program
constexpr const char* kEmergency = "on_exception";
constexpr const char* kLast = "last";

std::string checkpoints_folder(const std::string& run_folder);
// "step_12", "step_12.pt" or "checkpoint_12.pt"
std::string name_of_step(Layout layout, std::int64_t step);
// The step in such a name.
std::optional<std::int64_t> step_of_name(const std::string& name);

// All throw CheckpointError that says what the disk answered.
void make_folder(const std::string& path);
// `from` becomes `to` in one step; what was at `to` is removed afterwards.
void replace(const std::string& from, const std::string& to);
// The same where the file system cannot exchange two names: what was at `to` has another name for a
// moment, under which remove_leftovers finds it and puts it back if the process ends there.
void replace_in_two_steps(const std::string& from, const std::string& to);
// Whether `last` is a checkpoint itself instead of a link: it was copied by a program that follows
// links (scp -r).
bool last_is_a_copy(const std::string& folder);
// Makes the link `last` name this checkpoint, in one step. What is there and no link moves aside.
void point_last_to(const std::string& folder, const std::string& name);
// Removes a file with its manifest, or a directory: first under another name, so that half of a
// checkpoint never has the name of a whole one. Failing is logged.
void remove_checkpoint(const std::string& folder, const std::string& name) noexcept;
void remove_quietly(const std::string& path) noexcept;

// What interrupted saves left behind; what one of them was about to replace is back at its place.
void remove_leftovers(const std::string& folder) noexcept;
// Emergency sets that a newer checkpoint has made superfluous: not the one that this start of the
// program is about to write, which is newer than anything it has saved.
void retire_emergencies(const std::string& folder, const std::string& start) noexcept;
// Removes all checkpoints but the newest and the best ones, and `newest` in any case.
void keep_only(const std::string& folder, const CheckpointConfig& config,
               std::int64_t newest) noexcept;

// Checkpoints by step, newest first: names inside of the folder.
struct Listed {
  std::string name;
  std::int64_t step = 0;
};
std::vector<Listed> list_checkpoints(const std::string& folder);

}  // namespace floe::checkpoint
