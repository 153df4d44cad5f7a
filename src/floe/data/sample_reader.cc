#include "floe/data/sample_reader.h"

#include <utility>

#include "floe/core/error.h"
#include "floe/io/tar.h"

namespace floe::data {

SampleReader::SampleReader(NextShard next_shard, Rules rules, OnDamage on_damage, OnFile on_file)
    : next_shard_(std::move(next_shard)),
      on_damage_(std::move(on_damage)),
      on_file_(std::move(on_file)),
      grouper_(rules) {}

SampleReader::~SampleReader() = default;

std::optional<RawSample> SampleReader::next_of_shard() {
  try {
    TarEntry entry;
    while (tar_->next(entry)) {
      if (on_file_) on_file_(shard_, entry.name, entry.data.size());
      if (auto sample = grouper_.add(shard_, entry.name, std::move(entry.data))) return sample;
    }
  } catch (const DataError& error) {
    on_damage_(shard_, error.what());
  }
  tar_.reset();
  return grouper_.end_shard();
}

std::optional<RawSample> SampleReader::next() {
  while (!ended_) {
    if (tar_) {
      if (auto sample = next_of_shard()) return sample;
      continue;
    }
    auto shard = next_shard_();
    if (!shard) {
      ended_ = true;
      return grouper_.finish();
    }
    shard_ = std::move(*shard);
    try {
      tar_ = std::make_unique<TarReader>(shard_);
    } catch (const DataError& error) {
      on_damage_(shard_, error.what());
    }
  }
  return std::nullopt;
}

}  // namespace floe::data
