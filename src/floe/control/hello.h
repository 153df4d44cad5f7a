// The first message of a rank, and what a server thinks of it.
#pragma once

#include <string>
#include <vector>

#include "floe/control/control_plane.h"

namespace floe::control {

// What the two sides speak; another number is another language.
constexpr int kProtocol = 2;

Message message_of(const Member& member);
// Throws DataError for a message that is none.
Member member_of(const Message& message);

// All ranks, in order. What all have in common (see `judge`) is not said again, and what many have,
// the names of their hosts, is said once: a thousand ranks are told of a thousand.
Message message_of(const std::vector<Member>& members);
// `self` is one of them. Throws DataError for a message that is none.
std::vector<Member> members_of(const Message& message, const Member& self);

struct Verdict {
  enum class Kind {
    welcome,
    stranger,  // not of this job: it is sent away, and the job goes on
    later,     // it may ask again: a rank of that number is still there
    wrong,     // of this job, but not started alike: the job cannot go on
  };
  Kind kind = Kind::welcome;
  std::string why;
};

// Whether `other` may join the job of rank 0, `server`.
Verdict judge(const Member& server, const Member& other);

}  // namespace floe::control
