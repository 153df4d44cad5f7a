// A data source from the struct of its block: what the file of a source fills in.
//
//   std::unique_ptr<DataSource> laion_source() {
//     return make_source<LaionConfig>({.info = {.id = "laion", .help = "Image-text pairs", …},
//                                      .files = &LaionConfig::shards, …,
//                                      .rules = laion_rules});
//   }
#pragma once

#include "floe/data/sources/source.h"
#include "floe/schema/schema.h"

namespace floe::data {

// C is a struct with a schema (describe), at its defaults what an empty block means.
template <class C>
struct SourceDescription {
  SourceInfo info;
  std::string C::*files;
  double C::*weight;
  std::int64_t C::*per_batch;
  std::optional<std::int64_t> C::*per_epoch;
  SourceRules (*rules)(const C& block, const MakerContext& context);
};

// The keys that blocks of tar shards have in common.
template <class C>
void describe_shards(config::Schema<C>& s) {
  s.field("shards", &C::shards,
          "Tar shards: a path with {000..127} or {a,b}, several joined by ::, pipe:COMMAND or "
          "s3://…");
  s.field("batch_size", &C::batch_size, "Samples of a batch on each rank")
      .at_least(1)
      .at_most(1'000'000);
  s.field("weight", &C::weight, "What the loss of this source is multiplied with").at_least(0);
  s.field("num_samples", &C::num_samples,
          "Samples of an epoch over all ranks; null: the shards repeat without end")
      .at_least(1);
}

// DataSource for a description.
template <class C>
class DescribedSource : public DataSource {
 public:
  explicit DescribedSource(SourceDescription<C> d) : DataSource(d.info), d_(std::move(d)) {}

  void describe(config::Schema<DataConfig>& schema) const override {
    schema.field_at<std::optional<C>>(
        id(), [](auto& config) -> auto& { return config.template block<C>(); }, info().help);
  }
  bool is_set(const DataConfig& config) const override { return config.block<C>().has_value(); }
  void set(DataConfig& config) const override { config.block<C>().emplace(); }
  void remove(DataConfig& config) const override { config.block<C>().reset(); }
  double weight(const DataConfig& config) const override {
    return config.block<C>().value_or(C{}).*d_.weight;
  }
  std::string& files(DataConfig& config) const override { return *config.block<C>().*d_.files; }
  const std::string& files(const DataConfig& config) const override {
    return *config.block<C>().*d_.files;
  }
  std::int64_t per_batch(const DataConfig& config) const override {
    return *config.block<C>().*d_.per_batch;
  }
  std::optional<std::int64_t> per_epoch(const DataConfig& config) const override {
    return *config.block<C>().*d_.per_epoch;
  }
  SourceRules rules(const DataConfig& config, const MakerContext& context) const override {
    return d_.rules(*config.block<C>(), context);
  }

 private:
  SourceDescription<C> d_;
};

template <class C>
std::unique_ptr<DataSource> make_source(SourceDescription<C> description) {
  return std::make_unique<DescribedSource<C>>(std::move(description));
}

}  // namespace floe::data
