#include "floe/diag/memory_peak.h"

#include <algorithm>

#include "floe/core/bytes.h"
#include "floe/diag/percent.h"

namespace floe::diag {
namespace {

std::string activations_advice(const PeakContext& context) {
  if (context.main_holder.empty())
    return "activations, most of them outside of units: use shorter sequences or smaller batches";
  const std::string most = str("activations, most of them in ", context.main_holder);
  if (context.holder_is_checkpointed)
    return str(most,
               ", which is checkpointed already: use shorter sequences, or smaller batches with "
               "train.gradient_accumulation");
  return str(most, ": set strategy.activation_checkpointing: [", context.main_holder,
             "], or use shorter sequences or smaller batches");
}

std::string advice_for(std::string_view part, const PeakContext& context) {
  if (part == "parameters")
    return "slices of parameters: use more ranks, strategy.cpu_offload, or a smaller "
           "strategy.frozen.dtype";
  if (part == "optimizer")
    return "the optimizer's state and update: use more ranks or strategy.cpu_offload";
  if (part == "gathered")
    return "the pool of gathered parameters: name smaller units in strategy.units, lower "
           "strategy.prefetch, or use full_shard";
  if (part == "gradients")
    return "gradients: name smaller units in strategy.units, or use more ranks";
  if (part == "logits")
    return str("logits and their gradients, up to [", context.logits_rows, ", ", context.vocabulary,
               "] at a time: use fewer labelled tokens per batch");
  if (part == "activations") return activations_advice(context);
  return "tensors that are there between steps and are neither slices nor optimizer state: "
         "averaged "
         "weights, buffers, the batch";
}

}  // namespace

std::vector<MemoryPeak::Part> MemoryPeak::parts() const {
  std::vector<Part> parts{{"parameters", parameters},  {"optimizer", optimizer}, {"others", others},
                          {"gathered", gathered},      {"gradients", gradients}, {"logits", logits},
                          {"activations", activations}};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.bytes > b.bytes; });
  return parts;
}

std::string peak_hint(const MemoryPeak& peak) {
  constexpr std::size_t kMost = 3;
  constexpr std::int64_t kWorthSaying = 20;  // the twentieth part
  std::vector<std::string> words;
  for (const MemoryPeak::Part& part : peak.parts())
    if (words.size() < kMost && part.bytes > 0 && kWorthSaying * part.bytes >= peak.bytes)
      words.push_back(str(part.name, " ", percent(part.bytes, peak.bytes)));
  return join(words);
}

std::string peak_advice(const MemoryPeak& peak, const PeakContext& context) {
  const MemoryPeak::Part largest = peak.parts().front();
  return str("the peak of memory is ", format_bytes(peak.bytes), ", in ", peak.where, "; ",
             percent(largest.bytes, peak.bytes), " of it are ", advice_for(largest.name, context));
}

}  // namespace floe::diag
