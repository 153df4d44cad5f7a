// For test_files*.py: a model in the layouts of other systems.
//
//   weights_tool LAYOUT MODEL.yaml OUT [--dtype fp32|bf16|fp16] [--max-shard-bytes N] [--merge]
//
// LAYOUT: lm (Hugging Face folder), trained, flamingo (OUT.pt or OUT.safetensors), open_clip, clip
// (folders of the image tower), peft (folder). --dtype: of the file; without it as it was read.
// --merge: adapters are put into their layers before anything is saved.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/models/build.h"
#include "floe/models/lora/lora.h"
#include "floe/models/weights/save.h"
#include "floe/nn/load.h"

namespace floe {
namespace {

struct Words {
  std::string layout, model, out;
  models::SaveOptions how;
  bool merge = false;
};

Words parse(const std::vector<std::string>& args) {
  require<ConfigError>(args.size() >= 3, "usage: weights_tool LAYOUT MODEL.yaml OUT [options]");
  Words words{args[0], args[1], args[2]};
  for (std::size_t i = 3; i < args.size(); ++i) {
    if (args[i] == "--dtype")
      // NOLINTNEXTLINE(bugprone-optional-value-conversion): a name that is no type must throw
      words.how.dtype = dtype_from_name(args.at(++i)).value();
    else if (args[i] == "--max-shard-bytes")
      words.how.max_shard_bytes = std::stoll(args.at(++i));
    else if (args[i] == "--merge")
      words.merge = true;
    else
      throw ConfigError("there is no option '" + args[i] + "'");
  }
  return words;
}

void save(Words words) {
  auto config = config::load<models::ModelConfig>(config::read_yaml(words.model)).config;
  models::resolve_paths(config, std::filesystem::path(words.model).parent_path().string());
  const models::BuiltModel built = models::build_model(config, /*seed=*/0);
  nn::materialize(*built.module, built.source.get(), /*seed=*/0, at::kCPU);
  if (words.merge) models::merge_lora(*built.module);

  words.how.source = built.source.get();
  const models::WholeParameter whole = models::whole_parameters(*built.module);
  if (words.layout == "lm")
    models::save_language_model(*built.model, config.lm, words.out, whole, words.how);
  else if (words.layout == "trained")
    models::save_trained_part(*built.model, words.out, whole, words.how);
  else if (words.layout == "flamingo")
    models::save_flamingo(*built.model, words.out, whole, words.how);
  else if (words.layout == "open_clip")
    models::save_vision(*built.model, models::VisionNames::open_clip, words.out, whole, words.how);
  else if (words.layout == "clip")
    models::save_vision(*built.model, models::VisionNames::hugging_face, words.out, whole,
                        words.how);
  else if (words.layout == "peft")
    models::save_peft(*built.model, config.lora.value(), config.lm, words.out, whole, words.how);
  else
    throw ConfigError("there is no layout '" + words.layout + "'");
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) {
  try {
    floe::save(floe::parse({argv + 1, argv + argc}));
    return 0;
  } catch (const floe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
