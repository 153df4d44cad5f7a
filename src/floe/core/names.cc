#include "floe/core/names.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "floe/core/error.h"

namespace floe {

bool glob_match(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool glob_match_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_match(pattern, name); });
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the dynamic programme (optimal string alignment).
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::vector<std::string> nearest_names(const std::string& name,
                                       const std::vector<std::string>& candidates,
                                       std::size_t most) {
  std::vector<std::pair<std::size_t, std::string>> scored;
  const std::size_t limit = std::max<std::size_t>(2, name.size() / 3);
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    const bool contains = name.size() >= 3 && (candidate.find(name) != std::string::npos ||
                                               name.find(candidate) != std::string::npos);
    if (distance <= limit || contains) scored.emplace_back(distance, candidate);
  }
  std::sort(scored.begin(), scored.end());
  scored.erase(std::unique(scored.begin(), scored.end()), scored.end());
  std::vector<std::string> names;
  for (auto& [distance, candidate] : scored)
    if (names.size() < most) names.push_back(candidate);
  return names;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates) {
  const auto near = nearest_names(name, candidates);
  if (near.empty()) return "";
  return str("; did you mean '", join(near, "' or '"), "'?");
}

std::string did_you_mean_pattern(const std::string& pattern,
                                 const std::vector<std::string>& names) {
  std::string plain;
  for (const char c : pattern)
    if (c != '*' && c != '?') plain += c;
  while (!plain.empty() && plain.back() == '.') plain.pop_back();
  while (!plain.empty() && plain.front() == '.') plain.erase(0, 1);
  std::vector<std::string> parts;
  for (const auto& name : names)
    for (std::size_t end = name.find('.');; end = name.find('.', end + 1)) {
      parts.push_back(name.substr(0, end));
      if (end == std::string::npos) break;
    }
  return did_you_mean(plain, parts);
}

void require_matches(const std::string& key, const std::string& what,
                     const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names) {
  for (const auto& pattern : patterns) {
    const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return glob_match(pattern, name);
    });
    require<ConfigError>(any, key, ": '", pattern, "' matches no ", what,
                         did_you_mean_pattern(pattern, names));
  }
}

std::string expand_template(const std::string& text,
                            const std::map<std::string, std::string>& fields) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
      out += c;
      ++at;
      continue;
    }
    if (c != '{') {
      out += c;
      continue;
    }
    const std::size_t end = text.find('}', at);
    require<ConfigError>(end != std::string::npos, "the template '", text,
                         "' has a { without its }; write {{ for a brace");
    const std::string name = text.substr(at + 1, end - at - 1);
    const auto found = fields.find(name);
    if (found == fields.end()) {
      std::vector<std::string> names;
      for (const auto& [key, value] : fields) names.push_back(key);
      throw ConfigError(str("the template '", text, "' names {", name, "}, but samples have ",
                            names.empty() ? "no fields" : join(names, ", ")));
    }
    out += found->second;
    at = end;
  }
  return out;
}

}  // namespace floe
