// An inspection in words, or as one JSON object.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "floe/data/sample.h"
#include "floe/inspect/inspect.h"

namespace floe::inspect {

class InspectReport {
 public:
  // For every visit of Inspection::run.
  void add(const RawSample& raw, const Outcome& outcome);

  // After run().
  std::string text(const Inspection& inspection) const;
  nlohmann::ordered_json json(const Inspection& inspection) const;

 private:
  struct Range {
    std::int64_t least = 0, most = 0;
    void add(std::int64_t value);
    bool empty = true;
  };

  std::int64_t kept_ = 0, images_ = 0, labels_ = 0;
  std::map<std::string, std::int64_t> dropped_;      // by reason
  std::map<std::string, std::string> examples_;      // by reason: key and detail of the first
  std::map<std::string, std::int64_t> fields_;       // by suffix
  std::map<std::int64_t, std::int64_t> num_images_;  // samples by number of pictures
  std::vector<std::int64_t> lengths_;                // tokens of each kept sample
  Range widths_, heights_;
};

// One inspected sample as a line of JSON: shard, key, status (kept | dropped), reason, detail, ids,
// images, crop_sha256 (of each crop's bytes, HWC), label_spans ([first, end) of tokens with a
// label). Bytes that are not UTF-8 in names become U+FFFD.
std::string json_line(const Outcome& outcome);

// [first, end) of the positions that have a label.
std::vector<std::pair<std::size_t, std::size_t>> label_spans(const Sample& sample);

}  // namespace floe::inspect
