#include "floe/cli/inspect_model.h"

#include <nlohmann/json.hpp>

#include "floe/models/flamingo.h"
#include "floe/models/weight_defects.h"

namespace floe::cli {

nlohmann::ordered_json model_facts(const UsedModel& used) {
  const models::BuiltModel built = build(used);
  if (!used.trained.empty()) nn::set_trainable(*built.module, used.trained);
  const auto* flamingo = dynamic_cast<const models::Flamingo*>(built.model);
  const models::DecoderSpec& lm = built.model->decoder().spec();
  nlohmann::ordered_json facts{{"model", flamingo ? "flamingo" : "causal_lm"},
                               {"from", used.origin},
                               {"lm", used.config.lm},
                               {"family", lm.family},
                               {"layers", lm.layers},
                               {"width", lm.dim},
                               {"vocabulary", lm.vocab}};
  if (flamingo) {
    facts["vision"] = used.config.vision;
    facts["image_size"] = flamingo->spec().vision.image_size;
    facts["cross_attn_every_n_layers"] = flamingo->spec().cross_attention_every;
  }
  if (!used.config.weights.empty()) facts["weights"] = used.config.weights;
  if (used.config.lora) facts["lora"] = used.config.lora->targets;
  facts["tokenizer"] = built.tokenizer != nullptr;
  std::int64_t all = 0, trains = 0;
  std::vector<std::string> fresh;
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module)) {
    all += parameter.tensor.numel();
    if (parameter.tensor.requires_grad()) trains += parameter.tensor.numel();
    if (!built.source->find(parameter.name)) fresh.push_back(parameter.name);
  }
  facts["parameters"] = all;
  facts["trains"] = trains;
  if (!fresh.empty())
    for (const auto& [pattern, count] : models::name_patterns(fresh))
      facts["in_no_file"][pattern] = count;
  return facts;
}

}  // namespace floe::cli
