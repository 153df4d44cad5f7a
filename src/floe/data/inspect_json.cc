#include "floe/data/inspect_json.h"

#include <nlohmann/json.hpp>

#include "floe/core/sha256.h"

namespace floe::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson begin_line(const std::string& shard, const std::string& key, const char* status) {
  OrderedJson line;
  line["shard"] = shard;
  line["key"] = key;
  line["status"] = status;
  line["reason"] = nullptr;
  return line;
}

OrderedJson line_of(const Sample& sample) {
  OrderedJson line = begin_line(sample.shard, sample.key, "kept");
  line["ids"] = sample.ids;
  line["images"] = OrderedJson::array();
  line["crop_sha256"] = OrderedJson::array();
  for (std::size_t i = 0; i < sample.num_images(); ++i) {
    std::visit([&](const auto& name) { line["images"].push_back(name); }, sample.images[i]);
    line["crop_sha256"].push_back(sha256_hex(std::as_bytes(sample.crop(i))));
  }
  line["label_spans"] = label_spans(sample);
  return line;
}

OrderedJson line_of(const Dropped& dropped) {
  OrderedJson line = begin_line(dropped.shard, dropped.key, "dropped");
  line["reason"] = dropped.reason;
  line["detail"] = dropped.detail;
  for (const char* empty : {"ids", "images", "crop_sha256"}) line[empty] = OrderedJson::array();
  return line;
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> label_spans(const Sample& sample) {
  std::vector<std::pair<std::size_t, std::size_t>> spans;
  for (std::size_t i = 0; i < sample.labels.size(); ++i) {
    if (sample.labels[i] == kNoLabel) continue;
    if (spans.empty() || spans.back().second != i) spans.emplace_back(i, i);
    spans.back().second = i + 1;
  }
  return spans;
}

std::string json_line(const Outcome& outcome) {
  const OrderedJson line = std::visit([](const auto& what) { return line_of(what); }, outcome);
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace floe::data
