// Requests made of the samples of a data set in tar shards: one for each, in the order
// of the shards.
//
//   ShardRequests({"laion/{000..127}.tar", "<image>Output:", {}}, model, needs)
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "floe/requests/request.h"

namespace floe::requests {

struct ShardTemplate {
  std::string shards;  // see data::expand_shards
  // With {SUFFIX} for the text of a member (`{txt}`), {json.KEY} for a value of a JSON member, and
  // {__key__}. Each picture of a sample, in the order of the shard, needs its <image>.
  std::string prompt;
  std::vector<std::string> candidates;
};

// What a sample says goes through the templates; one that lacks a field, or whose picture is
// damaged, is a request with a problem. Samples are read as they are asked for, in order, so that
// every request costs one look at its shard; another order begins the shard anew.
class ShardRequests : public RequestSource {
 public:
  // Reads through all shards once. A shard that is damaged or missing is logged, and what can be
  // read of it counts. Throws ConfigError where there is no sample, or none has the fields.
  ShardRequests(ShardTemplate how, const models::BuiltModel& model, const RequestNeeds& needs);
  ~ShardRequests() override;

  std::int64_t size() const override { return firsts_.back(); }
  std::string digest() const override { return digest_; }
  Request read(std::int64_t number) const override;

 private:
  class Walk;

  ShardTemplate how_;
  std::vector<std::string> shards_;
  std::vector<std::int64_t> firsts_{0};  // number of the first sample of each shard, then of all
  std::string digest_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Walk> walk_;
};

}  // namespace floe::requests
