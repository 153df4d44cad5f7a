#include "floe/data/loader_counts.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "floe/core/str.h"
#include "floe/data/stream_codec.h"

namespace floe::data {
namespace {

constexpr std::int64_t kFewestBad = 5;
constexpr double kDeviations = 4;

}  // namespace

bool too_many(std::int64_t bad, std::int64_t all, double most) {
  if (most == 0) return bad > 0;
  const double expected = most * static_cast<double>(all);
  return bad >= kFewestBad &&
         static_cast<double>(bad) > expected + kDeviations * std::sqrt(expected * (1 - most));
}

bool is_damage(std::string_view reason) {
  return reason.starts_with("bad_") || reason == kLostAtResume;
}

std::int64_t Counts::num_damaged() const {
  std::int64_t damaged = 0;
  for (const auto& [reason, count] : dropped) damaged += is_damage(reason) ? count : 0;
  return damaged;
}

Counts& Counts::operator+=(const Counts& other) {
  samples += other.samples;
  kept += other.kept;
  left_over += other.left_over;
  for (const auto& [reason, count] : other.dropped) dropped[reason] += count;
  shards += other.shards;
  bad_shards += other.bad_shards;
  return *this;
}

std::string Counts::text() const {
  const auto part = [&](bool damage) {
    std::vector<std::string> reasons;
    std::int64_t all = 0;
    for (const auto& [reason, count] : dropped) {
      if (is_damage(reason) != damage) continue;
      reasons.push_back(str(reason, " ", count));
      all += count;
    }
    return all ? str(all, " (", join(reasons), ")") : std::string("none");
  };
  std::string text = str(samples, " samples read, ", kept,
                         " used; left out by the rules: ", part(false), "; damaged: ", part(true));
  if (left_over) text += str("; ", left_over, " left over at ends of passes");
  if (bad_shards)
    text += str("; ", bad_shards, " of ", shards, " shards could not be read to their end");
  return text;
}

nlohmann::json Counts::save() const {
  return {{"samples", samples}, {"kept", kept},     {"left_over", left_over},
          {"dropped", dropped}, {"shards", shards}, {"bad_shards", bad_shards}};
}

Counts Counts::load(const nlohmann::json& saved) {
  Counts counts;
  counts.samples = get<std::int64_t>(saved, "samples");
  counts.kept = get<std::int64_t>(saved, "kept");
  counts.left_over = get<std::int64_t>(saved, "left_over");
  counts.shards = get<std::int64_t>(saved, "shards");
  counts.bad_shards = get<std::int64_t>(saved, "bad_shards");
  const auto dropped = get<nlohmann::json>(saved, "dropped");
  require<DataError>(dropped.is_object(), "loader state: 'dropped' is no block");
  for (const auto& [reason, count] : dropped.items())
    counts.dropped[reason] = get<std::int64_t>(dropped, reason.c_str());
  return counts;
}

}  // namespace floe::data
