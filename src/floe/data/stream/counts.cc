#include "floe/data/stream/counts.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "floe/core/str.h"
#include "floe/data/sample.h"
#include "floe/data/stream/stream_codec.h"

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
  std::string text = str(counted(samples, "sample"), " read, ", kept,
                         " used; left out by the rules: ", part(false), "; damaged: ", part(true));
  if (left_over) text += str("; ", left_over, " left over at ends of passes");
  if (bad_shards)
    text += str("; ", bad_shards, " of ", counted(shards, "shard"), " could not be read to ",
                bad_shards == 1 ? "its" : "their", " end");
  return text;
}

std::string why_unused(const Counts& counts, std::string_view source) {
  if (counts.samples == 0)
    return counts.bad_shards
               ? str("Mend them, or name others. So far: ", counts.text())
               : str("Are they empty, or of another kind than data.", source, " reads?");
  std::string_view most;
  for (const auto& [reason, count] : counts.dropped)
    if (most.empty() || count > counts.dropped.find(most)->second) most = reason;
  if (most.empty()) return str("So far: ", counts.text());
  std::string advice = "see docs/data.md for what a sample needs";
  if (most == reason::kNoCaptionOrImage)
    advice =
        "a pair needs the members KEY.txt and KEY.jpg (or .png, .jpeg); are these shards of "
        "another source?";
  else if (most == reason::kNoDocument)
    advice = "a document needs the member KEY.json; are these shards of another source?";
  else if (most == reason::kNoImage)
    advice = "lower data.mmc4.text_sim_threshold, or add pictures to the documents (floe convert)";
  else if (most == reason::kFewImages)
    advice = "lower data.mmc4.min_images, or raise data.mmc4.max_tokens";
  else if (most == reason::kEmptyText)
    advice = "the documents have no text in them";
  else if (is_damage(most))
    advice = "mend the data; floe inspect shows each sample";
  return str("So far: ", counts.text(), ". Most often it is ", most, ": ", advice);
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
