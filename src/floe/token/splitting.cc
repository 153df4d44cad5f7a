#include "floe/token/splitting.h"

#include <iterator>

#include "floe/core/error.h"
#include "floe/io/json_text.h"

namespace floe::token {

namespace {

constexpr const char* kNames[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                  "Contiguous"};

}  // namespace

const char* name_of(SplitBehavior behavior) { return kNames[static_cast<int>(behavior)]; }

SplitBehavior read_split_behavior(const std::string& name, const std::string& where) {
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (name == kNames[i]) return static_cast<SplitBehavior>(i);
  throw DataError(
      str(where, ": \"behavior\" must be one of ", join(kNames), ", not ", quoted(name)));
}

void add_segments(std::string_view text, const std::vector<Segment>& segments,
                  SplitBehavior behavior, Pieces& pieces) {
  const auto add = [&](std::size_t begin, std::size_t end) {
    pieces.add(text.substr(begin, end - begin));
  };
  // Of several matches in a row only one joins its neighbour: the first the one in front, the last the
  // one behind.
  const auto joins = [&](std::size_t left) {  // `left` with the segment behind it
    const bool first = segments[left].is_match, second = segments[left + 1].is_match;
    switch (behavior) {
      case SplitBehavior::merged_with_previous: return second && !first;
      case SplitBehavior::merged_with_next: return first && !second;
      case SplitBehavior::contiguous: return first == second;
      default: return false;
    }
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (behavior == SplitBehavior::removed) {
      if (!segments[i].is_match) add(segments[i].begin, segments[i].end);
      continue;
    }
    if (i == 0 || !joins(i - 1)) begin = segments[i].begin;
    if (i + 1 == segments.size() || !joins(i)) add(begin, segments[i].end);
  }
}

void split(std::string_view text, const Pattern& pattern, SplitBehavior behavior, bool invert,
           Pieces& pieces) {
  thread_local std::vector<Segment> segments;
  // The common cases need no list: every segment is a piece, or every match is.
  const bool isolated = behavior == SplitBehavior::isolated;
  const bool only_matches = behavior == SplitBehavior::removed && invert;
  segments.clear();
  std::size_t done = 0;
  Pattern::Match match;
  const auto between = [&](std::size_t end) {
    if (done == end || only_matches) return;
    if (isolated)
      pieces.add(text.substr(done, end - done));
    else
      segments.push_back({done, end, invert});
  };
  while (pattern.find(text, done, match)) {
    between(match.begin);
    if (isolated || only_matches)
      pieces.add(text.substr(match.begin, match.end - match.begin));
    else
      segments.push_back({match.begin, match.end, !invert});
    done = match.end;
  }
  between(text.size());
  if (!isolated && !only_matches) add_segments(text, segments, behavior, pieces);
}

}  // namespace floe::token
