#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/data/sources/source.h"

namespace floe::data {

// One line per source; NAME_source() is in the file of that source. The place of a line is the
// source's number in batches, so that new ones come last.
#define FLOE_DATA_SOURCES(SOURCE) \
  SOURCE(laion)                   \
  SOURCE(mmc4)                    \
  SOURCE(text)                    \
  SOURCE(instruct)

#define FLOE_DECLARE(NAME) std::unique_ptr<DataSource> NAME##_source();
FLOE_DATA_SOURCES(FLOE_DECLARE)
#undef FLOE_DECLARE

const std::vector<std::unique_ptr<const DataSource>>& data_sources() {
  static const auto all = [] {
    std::vector<std::unique_ptr<const DataSource>> sources;
    const auto add = [&](std::unique_ptr<DataSource> source) {
      source->number_ = static_cast<std::int64_t>(sources.size());
      sources.push_back(std::move(source));
    };
#define FLOE_ADD(NAME) add(NAME##_source());
    FLOE_DATA_SOURCES(FLOE_ADD)
#undef FLOE_ADD
    return sources;
  }();
  return all;
}

const DataSource* find_source(std::string_view id) {
  for (const auto& source : data_sources())
    if (source->id() == id) return source.get();
  return nullptr;
}

const std::string& source_name(std::int64_t number) {
  require(number >= 0 && number < static_cast<std::int64_t>(num_sources()),
          "there is no data source number ", number);
  return data_sources()[static_cast<std::size_t>(number)]->id();
}

std::vector<const DataSource*> sources_of(const DataConfig& config) {
  std::vector<const DataSource*> sources;
  for (const auto& source : data_sources())
    if (source->is_set(config)) sources.push_back(source.get());
  return sources;
}

std::string source_keys(std::string_view prefix) {
  std::vector<std::string> keys;
  for (const auto& source : data_sources())
    keys.push_back(str(prefix, source->id(), ".", source->info().files_key));
  return join(keys);
}

}  // namespace floe::data
