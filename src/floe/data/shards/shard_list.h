// The shards that a configuration names.
//
//   expand_shards("laion/{00000..00127}.tar::s3://bucket/more-{a,b}.tar")
//
// The text is split at `::`; each part is one of
//   @FILE          a file with one such part per line (empty lines and lines that begin with # do
//                  not count); relative names in it are looked for beside it, else in the working
//                  directory;
//   s3://BUCKET/…  becomes `pipe:aws s3 cp s3://BUCKET/… -` after brace expansion;
//   pipe:COMMAND   the shard is what the command writes; braces are expanded in it as well;
//   a local path   with braces, and then with `*`, `?`, `[…]` as in the shell (sorted by name).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace floe::data {

// Bash-like braces as Python's `braceexpand` package does them: {a,b}, {0..9}, {00..99} with zero
// padding, {a..e}, steps {0..9..2}, nesting, `\` as escape; `{x}` stays as it is. Throws
// ConfigError for unbalanced braces and for more than `most` results.
std::vector<std::string> expand_braces(std::string_view pattern, std::size_t most = 1'000'000);

// All shards, in order. ConfigErrors that say what is there instead: a local pattern (braces,
// wild cards) of which no file exists, an @FILE that cannot be read, a list without any shard
// that exists. Single shards may be missing: a lost shard is met, logged and left when it is
// read, as in the reference. A part that is the name of an existing file is that file, whatever
// characters it has.
std::vector<std::string> expand_shards(std::string_view shards);

// The same text with the local parts made absolute where they are found, written in `file` (empty:
// on the command line); see Note [Relative paths]. Commands and what is not found stay as they are.
std::string resolve_shards(std::string_view shards, const std::string& file);
// The first part of a resolved text that was not found and cannot be left out: a pattern, a list,
// or any where none was found.
std::optional<std::string> unfound_part(std::string_view shards);

}  // namespace floe::data
