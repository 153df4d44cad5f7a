// Names: patterns over dotted ones, suggestions for misspelt ones, and templates that have some.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace floe {

// Shell-like pattern: `*` matches any run of characters (dots too), `?` one character, `[abc]` one
// of a set. "layers.*.mlp" matches "layers.3.mlp". Total on every input; never throws.
bool glob_match(const std::string& pattern, const std::string& name);

// True when any of the patterns matches.
bool glob_match_any(const std::vector<std::string>& patterns, const std::string& name);

// The number of single-character insertions, deletions, replacements and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Up to `most` candidates that look like `name`, nearest first; far ones are left out.
std::vector<std::string> nearest_names(const std::string& name,
                                       const std::vector<std::string>& candidates,
                                       std::size_t most = 3);

// "; did you mean 'x' or 'y'?" or an empty string when nothing is near.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates);

// The same for a pattern over dotted names: compared without its wild cards with every part of a
// name that ends at a dot, so that 'hed.*' finds 'head' among "head.weight", "head.bias".
std::string did_you_mean_pattern(const std::string& pattern, const std::vector<std::string>& names);

// Throws ConfigError "KEY: 'PATTERN' matches no WHAT", with near names, for the first pattern that
// matches none of the names.
void require_matches(const std::string& key, const std::string& what,
                     const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names);

// The template with the fields at their places: {name}, and {{ and }} for braces. Throws
// ConfigError that says which fields there are.
std::string expand_template(const std::string& text,
                            const std::map<std::string, std::string>& fields);

}  // namespace floe
