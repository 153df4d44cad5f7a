#include "floe/core/str.h"
#include "floe/migrate/openflamingo/sections.h"

namespace floe::migrate {
namespace {

using config::List;
using config::Value;

void set_hybrid_size(Translation& t) {
  const int size = t.launch.per_machine.value_or(8);
  t.page.set("strategy.hybrid_shard_size",
             Value(static_cast<std::int64_t>(size), t.flags.origin("--fsdp_sharding_strategy")),
             t.launch.per_machine ? "Ranks of a machine, as the launcher starts them."
                                  : "Ranks of a machine; the command does not say how many.");
  if (!t.launch.per_machine)
    t.page.warn(
        "strategy.hybrid_shard_size is the number of ranks of a machine, which the command does "
        "not say; 8 is assumed");
}

void train_without_orig_params(Translation& t) {
  t.page.set("train.optimizer.decay", Value(List(), t.flags.origin("--fsdp_use_orig_params")),
             "--fsdp without --fsdp_use_orig_params: everything decays. With it only gated "
             "cross-attention does, which is floe's default.");
  if (!t.is_on("--freeze_lm_embeddings"))
    t.page.warn(
        "with --fsdp and without --fsdp_use_orig_params train.py trains the whole embedding "
        "table, which its README advises against; floe trains the rows of <image> and "
        "<|endofchunk|>");
}

}  // namespace

void translate_strategy(Translation& t) {
  const bool hybrid = t.flags.text("--fsdp_sharding_strategy") == "hybrid";
  if (!t.is_on("--fsdp")) {
    t.page.set("strategy.sharding", Value(std::string("no_shard"), t.flags.origin("--fsdp")),
               "--fsdp (not given): Every rank holds everything, as with DDP. full_shard gives "
               "the same numbers and holds less.");
    for (const char* flag : {"--fsdp_use_orig_params", "--fsdp_sharding_strategy"})
      if (t.flags.given(flag))
        t.page.leave_out(str(t.flags.shown(flag), ": has no effect without --fsdp."));
  } else {
    t.page.set("strategy.sharding",
               Value(std::string(hybrid ? "hybrid" : "full_shard"), t.flags.origin("--fsdp")),
               t.comment("--fsdp") + (t.flags.given("--fsdp_sharding_strategy")
                                          ? str(" ", t.comment("--fsdp_sharding_strategy"))
                                          : std::string()));
    if (hybrid) set_hybrid_size(t);
    if (t.is_on("--fsdp_use_orig_params"))
      t.page.add_comment(
          "strategy.sharding",
          "--fsdp_use_orig_params: floe always works as with it: decay by parameter, "
          "and exactly two embedding rows train.");
    else
      train_without_orig_params(t);
  }
  if (t.is_on("--gradient_checkpointing")) {
    List classes;
    for (const char* name : {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler"})
      classes.emplace_back(std::string(name));
    t.page.set("strategy.activation_checkpointing",
               Value(std::move(classes), t.flags.origin("--gradient_checkpointing")),
               t.comment("--gradient_checkpointing"));
  }
}

void translate_precision(Translation& t) {
  const std::string precision = t.flags.text("--precision");
  const bool autocast = precision.starts_with("amp_");
  const std::string narrow = autocast ? "bf16" : precision;
  const auto dtype = [&](const std::string& name) {
    return Value(name, t.flags.origin("--precision"));
  };
  // FSDP is told to reduce and to keep buffers in the narrow type; DDP knows neither.
  const std::string other = t.is_on("--fsdp") ? narrow : "fp32";
  const std::string what =
      autocast              ? "Autocast over weights in fp32."
      : precision == "fp32" ? "Everything in fp32; floe's default is bf16."
      : precision == "bf16"
          ? "Computed in bf16, with fp32 masters of what trains."
          : "Computed in fp16, with fp32 masters of what trains and a scaled loss.";
  t.page.set("strategy.mixed_precision.param", dtype(autocast ? "fp32" : narrow),
             str(t.flags.shown("--precision"), ": ", what));
  t.page.set("strategy.mixed_precision.reduce", dtype(other),
             t.is_on("--fsdp") && narrow != "fp32"
                 ? "With --fsdp train.py reduces gradients, and keeps buffers, in that type."
                 : "");
  t.page.set("strategy.mixed_precision.buffer", dtype(other), "");
  if (autocast)
    t.page.set(
        "precision.autocast", dtype("bf16"),
        "With strategy.mixed_precision.param: bf16 the frozen weights take half the memory.");
  if (precision == "bf16" || precision == "fp16")
    t.page.add_comment("strategy.mixed_precision.param",
                       str("train.py itself fails with ", precision, ": it casts token ids too."));
}

}  // namespace floe::migrate
