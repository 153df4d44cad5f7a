#include "tests/models/golden.h"

#include <ATen/ATen.h>

#include <cstdlib>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/nn/load.h"

namespace floe::test {

std::string golden_path(const std::string& file) {
  const char* source = std::getenv("FLOE_SOURCE_DIR");
  require(source != nullptr, "set FLOE_SOURCE_DIR to the root of the sources");
  return str(source, "/tests/goldens/models/", file);
}

nlohmann::json golden_json(const std::string& file) {
  return parse_json(read_text(golden_path(file), 1 << 24), file);
}

std::map<std::string, at::Tensor> golden_tensors(const std::string& file) {
  const auto source = open_tensors(golden_path(file));
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : source->names())
    tensors[name] = nn::read_tensor(*source, source->get(name));
  return tensors;
}

GoldenModel golden_model(const std::string& name,
                         const std::function<void(models::ModelConfig&)>& change) {
  GoldenModel golden;
  golden.config =
      config::load<models::ModelConfig>(config::read_yaml(golden_path(name + "/model.yaml")))
          .config;
  models::resolve_paths(golden.config, golden_path(name));
  if (change) change(golden.config);
  golden.built = models::build_model(golden.config, /*seed=*/0);
  return golden;
}

GoldenModel whole_golden_model(const std::string& name,
                               const std::function<void(models::ModelConfig&)>& change) {
  GoldenModel golden = golden_model(name, change);
  nn::materialize(*golden.built.module, golden.built.source.get(), 0, at::kCPU);
  golden.built.module->eval();
  return golden;
}

PackedBatch golden_batch(const std::map<std::string, at::Tensor>& batches, int step,
                         const std::string& kind) {
  const std::string prefix = str("step", step, ".", kind, ".");
  at::Tensor images = batches.at(prefix + "images_i8").to(at::kFloat) / 64;
  if (images.dim() == 4) images = images.unsqueeze(1);  // one image per row
  PackedBatch batch =
      models::from_rows(batches.at(prefix + "input_ids"), batches.at(prefix + "attention_mask"),
                        batches.at(prefix + "labels"), images, /*keep_padding=*/false,
                        /*source=*/kind == "laion" ? 0 : 1);
  batch.validate();
  return batch;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  require(a.sizes() == b.sizes(), "shapes [", join(a.sizes()), "] and [", join(b.sizes()),
          "] differ");
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

}  // namespace floe::test
