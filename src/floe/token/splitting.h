// Cutting a piece at the matches of a pattern, and what becomes of the matches.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "floe/token/pattern.h"
#include "floe/token/pieces.h"
#include "floe/token/utf8.h"

namespace floe::token {

// For "the-final--countdown" cut at "-":
enum class SplitBehavior {
  removed,               // the final countdown
  isolated,              // the - final - - countdown
  merged_with_previous,  // the- final- - countdown
  merged_with_next,      // the -final - -countdown
  contiguous,            // the - final -- countdown
};

const char* name_of(SplitBehavior behavior);
// "Removed", "MergedWithNext" and so on; throws DataError for other names.
SplitBehavior read_split_behavior(const std::string& name, const std::string& where);

// A piece as a row of matches and of what lies between them.
struct Segment {
  std::size_t begin, end;
  bool is_match;
};

// Adds the segments to `pieces` as the behaviour joins them.
void add_segments(std::string_view text, const std::vector<Segment>& segments,
                  SplitBehavior behavior, Pieces& pieces);

// Cuts at the matches, or with `invert` at what lies between them.
void split(std::string_view text, const Pattern& pattern, SplitBehavior behavior, bool invert,
           Pieces& pieces);

// Cuts at every single character that the test accepts.
template <class Test>
void split_chars(std::string_view text, const Test& accepts, SplitBehavior behavior,
                 Pieces& pieces) {
  thread_local std::vector<Segment> segments;
  segments.clear();
  std::size_t done = 0;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const auto begin = static_cast<std::size_t>(at - text.data());
    if (!accepts(next_char(at))) continue;
    const auto end = static_cast<std::size_t>(at - text.data());
    if (done < begin) segments.push_back({done, begin, false});
    segments.push_back({begin, end, true});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), false});
  add_segments(text, segments, behavior, pieces);
}

}  // namespace floe::token
