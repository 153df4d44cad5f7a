#include "floe/models/weights/weight_defects.h"

#include <algorithm>
#include <set>

#include "floe/core/str.h"

namespace floe::models {
namespace {

constexpr std::size_t kNamedEach = 4;  // of a kind; of more, so many come first
constexpr std::size_t kFirst = 1;
constexpr std::size_t kMostPatterns = 4;  // of which so many in one part of the model
constexpr std::size_t kMostOfPart = 2;
constexpr std::size_t kMostNumbers = 8;

std::string shape_text(const WeightDefects::Shape& shape) { return str("[", join(shape), "]"); }

std::vector<std::string> segments_of(const std::string& name) {
  std::vector<std::string> segments{""};
  for (const char c : name)
    if (c == '.')
      segments.emplace_back();
    else
      segments.back() += c;
  return segments;
}

bool is_number(const std::string& segment) {
  return !segment.empty() && segment.size() < 10 &&
         segment.find_first_not_of("0123456789") == std::string::npos;
}

// The first `depth` segments, numbers as '#', and ".*" for the rest.
std::string pattern_of(const std::vector<std::string>& segments, std::size_t depth) {
  std::string pattern;
  for (std::size_t i = 0; i < std::min(depth, segments.size()); ++i)
    pattern += (i ? "." : "") + (is_number(segments[i]) ? std::string("#") : segments[i]);
  return segments.size() > depth ? pattern + ".*" : pattern;
}

struct Matched {
  std::size_t count = 0;
  std::vector<std::set<std::int64_t>> numbers;  // of each '#'
};

std::string with_numbers(const std::string& pattern, const Matched& matched) {
  std::string text;
  std::size_t next = 0;
  for (const char c : pattern) {
    if (c != '#') {
      text += c;
      continue;
    }
    const std::set<std::int64_t>& numbers = matched.numbers[next++];
    if (numbers.size() == 1)
      text += str(*numbers.begin());
    else
      text += numbers.size() <= kMostNumbers ? str("{", join(numbers, ","), "}") : std::string("*");
  }
  return text;
}

// The deepest patterns that are few enough.
std::vector<std::pair<std::string, std::size_t>> patterns_of(
    const std::vector<std::vector<std::string>>& names) {
  std::size_t depth = 1;
  for (const auto& segments : names) depth = std::max(depth, segments.size());
  for (;; --depth) {
    std::vector<std::string> order;
    std::map<std::string, Matched> patterns;
    for (const auto& segments : names) {
      const std::string pattern = pattern_of(segments, depth);
      if (!patterns.contains(pattern)) order.push_back(pattern);
      Matched& matched = patterns[pattern];
      ++matched.count;
      std::size_t place = 0;
      for (std::size_t i = 0; i < std::min(depth, segments.size()); ++i)
        if (is_number(segments[i])) {
          if (matched.numbers.size() == place) matched.numbers.emplace_back();
          matched.numbers[place++].insert(std::stoll(segments[i]));
        }
    }
    if (order.size() > kMostOfPart && depth > 1) continue;
    std::vector<std::pair<std::string, std::size_t>> found;
    for (const std::string& pattern : order)
      found.emplace_back(with_numbers(pattern, patterns[pattern]), patterns[pattern].count);
    return found;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::size_t>> name_patterns(
    const std::vector<std::string>& names) {
  std::vector<std::string> parts;  // by the first segment, as they come
  std::map<std::string, std::vector<std::vector<std::string>>> by_part;
  for (const std::string& name : names) {
    auto segments = segments_of(name);
    auto& part = by_part[segments[0]];
    if (part.empty()) parts.push_back(segments[0]);
    part.push_back(std::move(segments));
  }
  std::vector<std::pair<std::string, std::size_t>> found;
  for (const std::string& part : parts)
    for (auto& pattern : patterns_of(by_part[part])) found.push_back(std::move(pattern));
  return found;
}

void WeightDefects::add(Kind kind, const std::string& path, Defect defect) {
  const auto key = std::pair(kind, path);
  auto group = std::find_if(groups_.begin(), groups_.end(),
                            [&](const auto& known) { return known.first == key; });
  if (group == groups_.end()) group = groups_.insert(groups_.end(), {key, {}});
  group->second.push_back(std::move(defect));
}

void WeightDefects::missing(const std::string& name, const Shape& shape, const std::string& path) {
  add(Kind::missing, path,
      {name, str("'", name, "' ", shape_text(shape), " is missing in ", path)});
}

void WeightDefects::surplus(const std::string& name, const Shape& shape, const std::string& path) {
  add(Kind::surplus, path,
      {name,
       str("'", name, "' ", shape_text(shape), " in ", path, " belongs to nothing in the model")});
}

void WeightDefects::misshapen(const std::string& name, const Shape& found, const Shape& expected,
                              const std::string& path) {
  add(Kind::misshapen, path,
      {name, str("'", name, "' in ", path, " has shape ", shape_text(found), ", the model needs ",
                 shape_text(expected))});
}

void WeightDefects::other(const std::string& name, const std::string& sentence) {
  add(Kind::other, "", {name, sentence});
}

std::string WeightDefects::text() const {
  std::vector<std::string> parts;
  for (const auto& [key, defects] : groups_) {
    const bool few = defects.size() <= kNamedEach;
    for (std::size_t i = 0; i < (few ? defects.size() : kFirst); ++i)
      parts.push_back(defects[i].sentence);
    if (few) continue;
    std::vector<std::string> names, shown;
    for (const Defect& defect : defects) names.push_back(defect.name);
    const auto patterns = name_patterns(names);
    for (std::size_t i = 0; i < std::min(patterns.size(), kMostPatterns); ++i)
      shown.push_back(str(patterns[i].first, " (", patterns[i].second,
                          patterns[i].second == 1 ? " tensor)" : " tensors)"));
    if (patterns.size() > kMostPatterns)
      shown.push_back(str(patterns.size() - kMostPatterns, " other parts"));
    const char* how = key.first == Kind::missing     ? " are missing"
                      : key.first == Kind::surplus   ? " belong to nothing"
                      : key.first == Kind::misshapen ? " have other shapes"
                                                     : " are like that";
    parts.push_back(str("in all ", defects.size(), how, ": ", join(shown, ", ")));
  }
  return join(parts, "; ");
}

}  // namespace floe::models
