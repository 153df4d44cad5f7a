// The flags of OpenFlamingo's train.py as data, and a command line of them read as its argparse
// reads it. The table is that of the main branch (which is 2.0.1's), and of 1.x where it differs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "floe/migrate/page.h"
#include "floe/schema/value.h"

namespace floe::migrate {

enum class FlagKind { text, integer, number, toggle };

// How a flag's value gets into the configuration.
enum class Copy {
  if_given,  // as it is, into the one key; floe's default is train.py's
  always,    // as it is, also when it is not given: floe's default is another
  by_hand,   // openflamingo.cc knows
};

struct Flag {
  std::string_view name;  // with its dashes
  FlagKind kind = FlagKind::text;
  std::string_view fallback;  // train.py's default; empty: none
  std::string_view keys;      // of floe, joined by ", "; empty: there is no counterpart
  Copy copy = Copy::by_hand;
  std::string_view remark;        // what floe does, for comments and for the reference page
  std::string_view choices = {};  // joined by '|'; empty: anything of the kind
};

const std::vector<Flag>& openflamingo_flags();

// The words behind train.py.
class FlagValues {
 public:
  // Throws ConfigError where argparse would refuse the words: a missing or wrong value, a word that
  // belongs to no flag, a misspelt flag. Flags that are like none of train.py's, as a fork may have
  // them, are told on the page.
  FlagValues(const std::vector<std::string>& words, Page& page);

  bool given(std::string_view name) const;
  // The value, train.py's default when it was not given.
  std::string text(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  bool toggle(std::string_view name) const { return given(name); }
  // For a key, with where it came from.
  config::Value value(std::string_view name) const;
  config::Value value(std::string_view name, std::string_view other_text) const;
  config::Origin origin(std::string_view name) const;
  // For comments: "--seed 7", or "--seed (train.py's default, 42)".
  std::string shown(std::string_view name) const;

 private:
  struct Given {
    const Flag* flag;
    std::string text;
  };
  const Given* find(std::string_view name) const;
  void add(const Flag& flag, const std::string& text, Page& page);

  std::vector<Given> given_;
};

// The Markdown table of all flags, for docs/migrating.md.
std::string flags_reference();

}  // namespace floe::migrate
