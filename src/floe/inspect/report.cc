#include "floe/inspect/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "floe/core/bytes.h"
#include "floe/core/hash.h"
#include "floe/core/str.h"

namespace floe::inspect {
namespace {

constexpr std::size_t kNumBars = 8, kBarWidth = 40;

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// Lengths in about eight equal steps, as bars.
void write_histogram(std::ostream& out, const std::vector<std::int64_t>& lengths) {
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const std::int64_t step =
      std::max<std::int64_t>(1, ceil_div(*most - *least + 1, static_cast<std::int64_t>(kNumBars)));
  std::vector<std::size_t> counts(static_cast<std::size_t>((*most - *least) / step) + 1);
  for (const std::int64_t length : lengths)
    ++counts[static_cast<std::size_t>((length - *least) / step)];
  const std::size_t highest = *std::max_element(counts.begin(), counts.end());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::int64_t first = *least + static_cast<std::int64_t>(i) * step;
    const std::int64_t last = std::min(first + step - 1, *most);
    std::string bar;
    for (std::size_t k = 0; k < (counts[i] * kBarWidth + highest - 1) / highest; ++k) bar += "█";
    out << "  " << padded(first == last ? str(first) : str(first, "–", last), 10) << " "
        << padded(str(counts[i]), 7) << " " << bar << "\n";
  }
}

std::string lower_first(std::string text) {
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z')
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  return text;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "0 %";
  return str((part * 1000 / whole) / 10, ".", (part * 1000 / whole) % 10, " %");
}

}  // namespace

void InspectReport::Range::add(std::int64_t value) {
  least = empty ? value : std::min(least, value);
  most = empty ? value : std::max(most, value);
  empty = false;
}

void InspectReport::add(const RawSample& raw, const Outcome& outcome) {
  for (const Field& field : raw.fields) ++fields_[field.suffix];
  if (const auto* dropped = std::get_if<Dropped>(&outcome)) {
    ++dropped_[dropped->reason];
    examples_.try_emplace(dropped->reason, str(dropped->key, ": ", dropped->detail));
    return;
  }
  const Sample& sample = std::get<Sample>(outcome);
  ++kept_;
  images_ += std::ssize(sample.images);
  ++num_images_[std::ssize(sample.images)];
  lengths_.push_back(std::ssize(sample.ids));
  labels_ += std::count_if(sample.labels.begin(), sample.labels.end(),
                           [](std::int32_t label) { return label != kNoLabel; });
  for (const data::ImageSize& size : sample.sizes) {
    widths_.add(size.width);
    heights_.add(size.height);
  }
}

std::string InspectReport::text(const Inspection& inspection) const {
  std::ostringstream out;
  std::int64_t files = 0, bytes = 0, samples = 0, damaged = 0;
  for (const ShardTally& tally : inspection.tallies()) {
    out << tally.shard << ": " << tally.files << " files, " << tally.samples << " samples, "
        << format_bytes(tally.bytes) << (tally.damage.empty() ? "" : "; damaged: ") << tally.damage
        << "\n";
    files += tally.files;
    bytes += tally.bytes;
    samples += tally.samples;
    damaged += tally.damage.empty() ? 0 : 1;
  }
  out << "\n"
      << inspection.tallies().size()
      << (inspection.tallies().size() == 1 ? " shard (" : " shards (") << damaged << " damaged), "
      << files << " files, " << samples << " samples, " << format_bytes(bytes) << "\n";
  if (samples == 0) return out.str();

  const data::SourceInfo& source = inspection.source().info();
  out << "source   " << source.id << ": " << lower_first(source.help) << "\n";
  out << "fields   ";
  const char* separator = "";
  for (const auto& [suffix, count] : fields_) {
    out << separator << suffix << " (" << count << ")";
    separator = ", ";
  }
  out << "\nkept     " << kept_ << " (" << percent(kept_, samples) << ")";
  if (!inspection.has_tokenizer())
    out << ", as far as can be told without a tokenizer (--tokenizer DIR)";
  out << "\n";
  if (images_ > 0)
    out << "images   " << images_ << ", " << widths_.least << "–" << widths_.most << " wide, "
        << heights_.least << "–" << heights_.most << " high\n";
  if (inspection.image_slots() > 1) {
    for (const auto& [count, documents] : num_images_)
      out << "         " << documents << " documents with " << count << "\n";
  }
  if (inspection.has_tokenizer() && kept_ > 0) {
    const std::int64_t tokens = std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0});
    out << "tokens   " << tokens << ", of which " << labels_ << " (" << percent(labels_, tokens)
        << ") have a label; per sample:\n";
    write_histogram(out, lengths_);
  }
  const std::int64_t num_dropped = samples - kept_;
  out << "dropped  " << num_dropped << " (" << percent(num_dropped, samples) << ")\n";
  for (const auto& [reason, count] : dropped_)
    out << "  " << padded(reason, 20) << " " << padded(str(count), 7) << " such as "
        << examples_.at(reason) << "\n";
  return out.str();
}

nlohmann::ordered_json InspectReport::json(const Inspection& inspection) const {
  nlohmann::ordered_json report;
  report["shards"] = nlohmann::ordered_json::array();
  for (const ShardTally& tally : inspection.tallies())
    report["shards"].push_back(
        {{"shard", tally.shard},
         {"files", tally.files},
         {"samples", tally.samples},
         {"bytes", tally.bytes},
         {"damage",
          tally.damage.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(tally.damage)}});
  report["fields"] = fields_;
  report["kept"] = kept_;
  report["dropped"] = dropped_;
  report["images"] = images_;
  if (images_ > 0) {
    report["image_width"] = {widths_.least, widths_.most};
    report["image_height"] = {heights_.least, heights_.most};
  }
  if (inspection.has_tokenizer()) {
    report["token_lengths"] = lengths_;
    report["labelled_tokens"] = labels_;
  }
  if (kept_ + std::ssize(dropped_) > 0) report["source"] = inspection.source().id();
  return report;
}

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

}  // namespace floe::inspect
