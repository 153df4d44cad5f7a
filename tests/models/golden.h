// The golden models of tests/goldens/models and their tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "floe/batch/packed_batch.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/build.h"

namespace floe::test {

// A file of a golden folder.
std::string golden_path(const std::string& file);
nlohmann::json golden_json(const std::string& file);
std::map<std::string, at::Tensor> golden_tensors(const std::string& file);

struct GoldenModel {
  models::ModelConfig config;
  models::BuiltModel built;

  models::LanguageModel& model() const { return *built.model; }
};
// "opt_x1" or "neox_x2" from its model.yaml, deferred. `change` edits the configuration before.
GoldenModel golden_model(const std::string& name,
                         const std::function<void(models::ModelConfig&)>& change = {});
// The same in one piece, in evaluation mode.
GoldenModel whole_golden_model(const std::string& name,
                               const std::function<void(models::ModelConfig&)>& change = {});

// What a training step of the goldens sees of one data set, "laion" (source 0) or "mmc4" (source
// 1), without padding.
PackedBatch golden_batch(const std::map<std::string, at::Tensor>& batches, int step,
                         const std::string& kind);

double largest_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace floe::test
