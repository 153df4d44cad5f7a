#include "floe/data/loader/prepared_batches.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/str.h"
#include "floe/data/stream/stream_codec.h"
#include "floe/io/safetensors/safetensors.h"

namespace floe::data {
namespace {

using nlohmann::json;

constexpr auto kFields = std::to_array<std::string_view>(
    {"input_ids", "attention_mask", "labels", "images", "images_i8"});
constexpr float kInt8Scale = 1.0F / 64;

constexpr std::string_view kRank = "{rank}";

std::string with_rank(std::string path, std::int64_t rank) {
  const std::size_t at = path.find(kRank);
  return at == std::string::npos ? path : path.replace(at, kRank.size(), str(rank));
}

// "laion|mmc4|text"
std::string source_names() {
  std::vector<std::string> names;
  for (const auto& source : data_sources()) names.push_back(source->id());
  return join(names, "|");
}

template <class T>
std::vector<T> read_as(const TensorSource& file, const TensorInfo& info) {
  std::vector<T> values(static_cast<std::size_t>(info.numel()));
  file.read(info, 0, info.numel(), std::as_writable_bytes(std::span(values)));
  return values;
}

class PreparedState : public SourceState {
 public:
  PreparedState(std::int64_t steps, std::int64_t next, std::uint64_t digest)
      : steps_(steps), next_(next), digest_(digest) {}
  json save() const override {
    return {{"source", "batches"}, {"steps", steps_}, {"next", next_}, {"digest", digest_}};
  }

 private:
  std::int64_t steps_, next_;
  std::uint64_t digest_;
};

class PreparedBatches : public BatchSource {
 public:
  explicit PreparedBatches(const std::string& path) : path_(path), file_(path) {
    while (!sources_of(num_steps_).empty()) ++num_steps_;
    require<DataError>(num_steps_ > 0, "'", path_, "' has no prepared batches: there is no tensor ",
                       "named step0.<", source_names(), ">.input_ids");
    check_names();
    digest_ = digest_of_ends();
  }

  std::int64_t num_steps() const { return num_steps_; }
  std::uint64_t fingerprint() const {
    Hash64 hash;
    for (std::int64_t step = 0; step < num_steps_; ++step) {
      hash.add(static_cast<std::uint64_t>(step));
      for (const DataSource* source : sources_of(step)) hash.add(source->id());
    }
    return hash.value();
  }
  // Of the first and the last step.
  std::uint64_t digest() const { return digest_; }
  void set_next(std::int64_t next) { next_ = next; }

  std::optional<SourceOutput> try_next() override {
    SourceOutput output;
    for (const DataSource* source : sources_of(next_))
      output.batches.push_back(batch_of(str("step", next_, ".", source->id(), "."), *source));
    next_ = (next_ + 1) % num_steps_;
    output.ends_epoch = next_ == 0;
    output.after = std::make_shared<PreparedState>(num_steps_, next_, digest_);
    return output;
  }
  std::shared_ptr<const SourceState> initial_state() const override {
    return std::make_shared<PreparedState>(num_steps_, next_, digest_);
  }

 private:
  std::vector<const DataSource*> sources_of(std::int64_t step) const {
    std::vector<const DataSource*> sources;
    for (const auto& source : data_sources())
      if (file_.find(str("step", step, ".", source->id(), ".input_ids")))
        sources.push_back(source.get());
    return sources;
  }

  // A step that cannot be reached, or a misspelt name, would be left out in silence.
  void check_names() const {
    for (const std::string& name : file_.names()) {
      std::int64_t step = -1;
      const char* const end = name.data() + name.size();
      const char* rest = name.data();
      if (name.starts_with("step")) rest = std::from_chars(name.data() + 4, end, step).ptr;
      const std::string_view behind(rest, static_cast<std::size_t>(end - rest));
      const std::size_t dot = behind.rfind('.');
      const bool is_known =
          step >= 0 && dot != 0 && dot != std::string_view::npos &&
          name == str("step", step, behind) && behind.starts_with('.') &&
          find_source(behind.substr(1, dot - 1)) &&
          std::find(kFields.begin(), kFields.end(), behind.substr(dot + 1)) != kFields.end();
      require<DataError>(is_known && step < num_steps_, "'", path_, "' has a tensor '", name,
                         "', which belongs to none of its ", num_steps_,
                         " steps; expected step<i>.<", source_names(), ">.<", join(kFields, "|"),
                         "> with i from 0 on");
    }
  }

  const TensorInfo& table(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const TensorInfo& info = file_.get(name);
    require<DataError>(info.dtype == DType::i64 && info.shape == shape, "'", path_, "': '", name,
                       "' must be int64 [", join(shape), "], not ", name_of(info.dtype), " [",
                       join(info.shape), "]");
    return info;
  }

  // Pictures of a batch as floats; rows of `each` pictures.
  struct Pictures {
    std::int64_t each = 0, height = 0, width = 0;
    std::vector<float> values;

    std::int64_t numel() const { return 3 * height * width; }
    const float* at(std::int64_t picture) const { return values.data() + picture * numel(); }
    bool is_zero(std::int64_t picture) const {
      const float* first = at(picture);
      return std::all_of(first, first + numel(), [](float value) { return value == 0; });
    }
  };

  Pictures pictures_of(const std::string& prefix, std::int64_t rows) const {
    Pictures pictures;
    const TensorInfo* floats = file_.find(prefix + "images");
    const TensorInfo* bytes = file_.find(prefix + "images_i8");
    const TensorInfo* info = floats ? floats : bytes;
    if (!info) return pictures;
    const auto& shape = info->shape;
    const std::size_t dims = shape.size();
    require<DataError>((dims == 4 || dims == 5) && shape[0] == rows && shape[dims - 3] == 3 &&
                           info->dtype == (floats ? DType::f32 : DType::i8),
                       "'", path_, "': '", info->name, "' must be ", floats ? "float32" : "int8",
                       " [", rows, ", 3, H, W] or [", rows, ", K, 3, H, W], not ",
                       name_of(info->dtype), " [", join(shape), "]");
    pictures.each = dims == 4 ? 1 : shape[1];
    pictures.height = shape[dims - 2];
    pictures.width = shape[dims - 1];
    if (floats) {
      pictures.values = read_as<float>(file_, *info);
    } else {
      for (const std::int8_t value : read_as<std::int8_t>(file_, *info))
        pictures.values.push_back(static_cast<float>(value) * kInt8Scale);
    }
    return pictures;
  }

  PendingBatch batch_of(const std::string& prefix, const DataSource& source) const {
    const auto& shape = file_.get(prefix + "input_ids").shape;
    require<DataError>(shape.size() == 2, "'", path_, "': '", prefix,
                       "input_ids' must have two dimensions, not [", join(shape), "]");
    const std::int64_t rows = shape[0], width = shape[1];
    const auto ids = read_as<std::int64_t>(file_, table(prefix + "input_ids", shape));
    const auto mask = read_as<std::int64_t>(file_, table(prefix + "attention_mask", shape));
    const auto labels = read_as<std::int64_t>(file_, table(prefix + "labels", shape));
    auto pictures = std::make_shared<const Pictures>(pictures_of(prefix, rows));
    PendingBatch pending;
    pending.sequences.source = source.number();
    pending.sequences.image_slots = pictures->each;
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<std::int64_t> row_ids, row_labels;
      for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (mask[at] == 0) continue;
        row_ids.push_back(ids[at]);
        row_labels.push_back(labels[at]);
      }
      std::int64_t count = pictures->each;
      while (count > 0 && pictures->is_zero(row * pictures->each + count - 1)) --count;
      for (std::int64_t k = 0; k < count; ++k)
        pending.images.push_back({.values = pictures->at(row * pictures->each + k)});
      pending.sequences.add_sequence(row_ids, row_labels, count, str(prefix, row));
    }
    pending.shape = {static_cast<std::int64_t>(pending.images.size()), pictures->height,
                     pictures->width};
    pending.owner = pictures;
    return pending;
  }

  std::uint64_t digest_of_ends() const {
    Hash64 hash;
    hash.add(static_cast<std::uint64_t>(num_steps_));
    for (const std::string& name : file_.names()) {
      if (!name.starts_with("step0.") && !name.starts_with(str("step", num_steps_ - 1, ".")))
        continue;
      const TensorInfo& info = file_.get(name);
      std::vector<char> bytes(static_cast<std::size_t>(info.numel()) * size_of(info.dtype));
      file_.read(info, 0, info.numel(), std::as_writable_bytes(std::span(bytes)));
      hash.add(name).add(std::string_view(bytes.data(), bytes.size()));
    }
    return hash.value();
  }

  std::string path_;
  SafetensorsFile file_;
  std::int64_t num_steps_ = 0, next_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace

bool has_prepared_batches(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return true;
  const std::size_t at = path.find(kRank);
  if (at == std::string::npos) return false;
  // Whatever the rank: here may be files of some ranks only.
  const std::size_t slash = path.rfind('/', at) + 1;  // 0 without one
  const std::string folder = slash ? path.substr(0, slash) : "./";
  const std::size_t end = path.find('/', at);  // of the name that has the rank in it
  const std::string before = path.substr(slash, at - slash);
  const std::string after = path.substr(
      at + kRank.size(), end == std::string::npos ? std::string::npos : end - at - kRank.size());
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > before.size() + after.size() && name.starts_with(before) &&
        name.ends_with(after) &&
        name.substr(before.size(), name.size() - before.size() - after.size())
                .find_first_not_of("0123456789") == std::string::npos)
      return true;
  }
  return false;
}

void require_file_per_rank(const std::string& path, const std::string& key, std::int64_t num_ranks,
                           std::int64_t own_rank) {
  require<ConfigError>(
      num_ranks == 1 || path.find(kRank) != std::string::npos, key, " is '", path,
      "', the same batches for all ", num_ranks,
      " ranks; give every rank a file of its own and write {rank} where their names "
      "differ");
  const std::int64_t end = own_rank == 0 ? num_ranks : own_rank + 1;
  for (std::int64_t rank = own_rank; rank < end; ++rank)
    require<ConfigError>(std::filesystem::exists(with_rank(path, rank)), key, ": there is no '",
                         with_rank(path, rank), "' for rank ", rank, " of ", num_ranks,
                         "; give every rank a file of its own");
}

LoaderParts make_prepared(const std::string& path, const LoaderSetup& setup,
                          const SavedRanks& saved) {
  const LoaderContext& context = setup.context;
  const std::string& key = context.keys.batches;
  require_file_per_rank(path, key, context.world, context.rank);
  auto source = std::make_unique<PreparedBatches>(with_rank(path, context.rank));
  LoaderParts parts;
  parts.steps_per_epoch = source->num_steps();
  parts.fingerprint = source->fingerprint();
  parts.digest = source->digest();
  if (saved.world > 0) {
    // Prepared batches have their ranks already, so with another number of them a rank that was not
    // there follows the first one.
    const json own = saved.of(std::min(context.rank, saved.world - 1));
    const json sources = get<json>(own, "sources");
    if (const std::string before = sources_text(sources); before != "batches")
      throw OtherData("data", before, "batches");
    const auto steps = get<std::int64_t>(sources[0], "steps");
    if (steps != source->num_steps())
      throw OtherData(key, counted(steps, "step"), counted(source->num_steps(), "step"));
    if (context.rank < saved.world && sources[0].contains("digest") &&
        get<std::uint64_t>(sources[0], "digest") != source->digest())
      throw OtherData(key, "a file with other batches", str("'", path, "'"));
    const auto next = get<std::int64_t>(sources[0], "next");
    require<DataError>(next >= 0 && next < source->num_steps(), "loader state: it stands at step ",
                       next, " of ", source->num_steps());
    parts.epoch = get<std::int64_t>(own, "epoch");
    parts.index = next;
    source->set_next(next);
  }
  parts.names.emplace_back("batches");
  parts.sources.push_back(std::move(source));
  return parts;
}

}  // namespace floe::data
