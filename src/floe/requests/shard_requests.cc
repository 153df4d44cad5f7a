#include "floe/requests/shard_requests.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/core/utf8.h"
#include "floe/data/shards/grouping.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/laion.h"
#include "floe/io/tar/tar.h"

namespace floe::requests {
namespace {

std::string text_of(const data::Field& field) {
  return {reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size()};
}

// What templates can name.
std::map<std::string, std::string> fields_of(const data::RawSample& sample) {
  std::map<std::string, std::string> fields{{"__key__", sample.key}};
  for (const data::Field& field : sample.fields) {
    if (data::is_image_suffix(field.suffix)) continue;
    std::string text = text_of(field);
    if (field.suffix == "json") {
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      for (const auto& [key, value] : json.items())
        fields["json." + key] = value.is_string() ? value.get<std::string>() : value.dump();
      continue;
    }
    fields[field.suffix] = std::move(text);
  }
  return fields;
}

nlohmann::json request_of(const ShardTemplate& how, const data::RawSample& sample) {
  const auto fields = fields_of(sample);
  nlohmann::json request{{"prompt", expand_template(how.prompt, fields)}};
  for (const std::string& candidate : how.candidates)
    request["candidates"].push_back(expand_template(candidate, fields));
  return request;
}

}  // namespace

// The samples of one shard, one after the other.
class ShardRequests::Walk {
 public:
  // `speaks`: says what is wrong with the shard.
  Walk(std::size_t shard, std::string path, bool speaks)
      : shard_(shard), path_(std::move(path)), speaks_(speaks) {
    guarded([&] { reader_.emplace(path_); });
  }

  std::size_t shard() const { return shard_; }
  std::int64_t given() const { return given_; }

  std::optional<data::RawSample> next() {
    std::optional<data::RawSample> sample;
    guarded([&] {
      TarEntry entry;
      while (reader_ && !sample && reader_->next(entry))
        sample = grouper_.add(path_, entry.name, std::move(entry.data));
      if (!sample) reader_.reset();
    });
    if (!sample) sample = grouper_.finish();
    if (sample) ++given_;
    return sample;
  }

 private:
  template <class F>
  void guarded(F&& f) {
    try {
      f();
    } catch (const ResourceError&) {
      throw;
    } catch (const DataError& error) {
      reader_.reset();
      if (speaks_) log::warn(error.what(), "; what can be read of it is asked");
    }
  }

  std::size_t shard_;
  std::string path_;
  bool speaks_;
  std::optional<TarReader> reader_;
  data::Grouper grouper_{data::Rules::corrected};
  std::int64_t given_ = 0;
};

ShardRequests::ShardRequests(ShardTemplate how, const models::BuiltModel& model,
                             const RequestNeeds& needs)
    : RequestSource(model, needs), how_(std::move(how)), shards_(data::expand_shards(how_.shards)) {
  std::uint32_t sum = 0;
  std::string wrong;  // with the first sample that the templates do not fit
  bool any = false;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    Walk walk(s, shards_[s], /*speaks=*/true);
    while (const auto sample = walk.next()) {
      sum = crc32(sample->key, sum);
      for (const data::Field& field : sample->fields) sum = crc32(text_of(field), sum);
      if (any) continue;
      try {
        request_of(how_, *sample);
        any = true;
      } catch (const ConfigError& error) {
        if (wrong.empty()) wrong = error.what();
      }
    }
    firsts_.push_back(firsts_.back() + walk.given());
  }
  require<ConfigError>(size() > 0, "the shards '", how_.shards, "' have no sample");
  require<ConfigError>(any, wrong);
  digest_ = hex_digits(sum, 8);
}

ShardRequests::~ShardRequests() = default;

Request ShardRequests::read(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto shard = static_cast<std::size_t>(
      std::upper_bound(firsts_.begin(), firsts_.end(), number) - firsts_.begin() - 1);
  const std::int64_t inside = number - firsts_[shard];
  if (!walk_ || walk_->shard() != shard || walk_->given() > inside)
    walk_ = std::make_unique<Walk>(shard, shards_[shard], /*speaks=*/false);
  std::optional<data::RawSample> sample;
  while (walk_->given() <= inside) {
    sample = walk_->next();
    require<DataError>(sample.has_value(), "the shard '", shards_[shard],
                       "' has changed since the command began: sample ", inside, " is gone");
  }

  Request request;
  request.number = number;
  const std::string name = std::filesystem::path(shards_[shard]).filename().string();
  request.id = shown_bytes(name + "/" + sample->key);
  request.where = shown_bytes(str("'", shards_[shard], "' sample '", sample->key, "': "));
  for (data::Field& field : sample->fields)
    if (data::is_image_suffix(field.suffix)) request.encoded.push_back(std::move(field.bytes));
  try {
    take(request, request_of(how_, *sample), "");
  } catch (const ConfigError& error) {
    request.problem = {"field", request.where + error.what()};
  }
  return request;
}

}  // namespace floe::requests
