#include <algorithm>
#include <array>
#include <optional>

#include "floe/core/str.h"
#include "floe/migrate/lightning/keys.h"
#include "floe/schema/codec.h"

namespace floe::migrate {
namespace {

using config::List;
using config::Map;
using config::Value;

// ---- types ----

// "torch.bfloat16", "bfloat16", "bf16" or Hydra's {_target_: ..., path: torch.bfloat16}.
std::string dtype_name(const Value& value, std::string_view key) {
  const Value* named = &value;
  if (value.as<Map>())
    for (const char* part : {"path", "object", "obj"})
      if (const Value* inner = value.at(part)) named = inner;
  const auto* text = named->as<std::string>();
  const std::string name = text ? lower(last_part(*text)) : "";
  if (name == "bfloat16" || name == "bf16") return "bf16";
  if (name == "float16" || name == "half" || name == "fp16") return "fp16";
  if (name == "float32" || name == "float" || name == "fp32") return "fp32";
  refuse(value,
         str(key, " is ", value.shown(), ", but floe has torch.float32, bfloat16 and float16"));
}

void mixed_precision(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  const std::string name = class_of(value);
  if (last_part(name) == "fsdp_bf16_mixed_precision")
    return set_types(target, value, comment, "bf16", "fp32", "fp32");
  const Map arguments = arguments_of(value);
  if (!name.empty() && last_part(name) != "MixedPrecision")
    refuse(value,
           str("mixed_precision is made by ", name,
               ", which says nothing here about its types; write param_dtype, reduce_dtype and "
               "buffer_dtype of torch.distributed.fsdp.MixedPrecision"));
  if (!value.as<Map>())
    refuse(value,
           str("mixed_precision must be a block with param_dtype, reduce_dtype and buffer_dtype, "
               "not ",
               value.shown()));
  std::optional<std::string> param, reduce, buffer;
  for (const auto& [key, item] : arguments) {
    if (key == "param_dtype" && !item.is_null())
      param = dtype_name(item, key);
    else if (key == "reduce_dtype" && !item.is_null())
      reduce = dtype_name(item, key);
    else if (key == "buffer_dtype" && !item.is_null())
      buffer = dtype_name(item, key);
    else if (key == "keep_low_precision_grads" || key.starts_with("cast_") ||
             key.starts_with("_module"))
      target.page.leave_out(str("mixed_precision.", key,
                                ": gradients are reduced in reduce and kept in fp32; "
                                "inputs are cast where a unit begins."));
    else if (key != "param_dtype" && key != "reduce_dtype" && key != "buffer_dtype")
      refuse(item, str("mixed_precision.", key,
                       " is no argument of torch.distributed.fsdp.MixedPrecision"));
  }
  // A type that is not said is that of the model, which Lightning builds in fp32; gradients are
  // reduced in the type of the parameters.
  const std::string computed = param.value_or("fp32");
  set_types(target, value, comment, computed, reduce.value_or(computed), buffer.value_or("fp32"));
}

// ---- classes ----

// The class of floe that does the work of a Python one; empty: none is known.
std::string own_class(const std::string& dotted) {
  const std::string name = last_part(dotted);
  constexpr std::array kDecoders = {"GPTNeoXLayer", "MPTBlock", "MptBlock", "GPTBlock"};
  constexpr std::array kTowerBlocks = {"CLIPEncoderLayer", "ResidualAttentionBlock", "ViTBlock"};
  if (name.ends_with("DecoderLayer") ||
      std::find(kDecoders.begin(), kDecoders.end(), name) != kDecoders.end())
    return "DecoderLayer";
  if (std::find(kTowerBlocks.begin(), kTowerBlocks.end(), name) != kTowerBlocks.end())
    return "ViTBlock";
  if (name == "GatedCrossAttentionBlock" || name == "GatedCrossAttention")
    return "GatedCrossAttention";
  return name == "PerceiverResampler" || name == "BertLayer" ? name : "";
}

// Every class that a policy names, however deep in calls of Hydra.
void collect_classes(const Value& value, std::vector<std::string>& names) {
  if (const auto* text = value.as<std::string>()) names.push_back(*text);
  if (const auto* list = value.as<List>())
    for (const Value& item : *list) collect_classes(item, names);
  if (const auto* map = value.as<Map>()) {
    for (const auto& [key, item] : *map) {
      if (key == "_target_" || key == "_partial_" || key == "_convert_" || key == "class_path")
        continue;
      if (item.is_null() && key.find('.') != std::string::npos)
        names.push_back(key);  // a set, {a.B}
      collect_classes(item, names);
    }
  }
}

void classes_into(std::string_view key, std::string_view name, const Value& value,
                  const std::string& comment, Target& target) {
  if (value.is_null()) return;
  std::vector<std::string> named;
  collect_classes(value, named);
  const std::string helper = last_part(class_of(value));
  // A class by itself, {_target_: torch.nn.TransformerEncoderLayer}.
  if (named.empty() && !helper.empty()) named.push_back(class_of(value));
  List classes;
  std::vector<std::string> unknown;
  for (const std::string& dotted : named) {
    if (last_part(dotted).ends_with("wrap_policy") ||
        last_part(dotted).ends_with("ModuleWrapPolicy")) {
      if (dotted.find("size_based") != std::string::npos) unknown.push_back(dotted);
      continue;
    }
    const std::string own = own_class(dotted);
    const bool known = std::any_of(classes.begin(), classes.end(), [&](const Value& item) {
      return *item.as<std::string>() == own;
    });
    if (own.empty())
      unknown.push_back(dotted);
    else if (!known)
      classes.push_back(word(own, value));
  }
  if (helper.find("size_based") != std::string::npos) unknown.push_back(helper);
  if (!unknown.empty()) {
    const std::string sentence =
        str(name, " names ", join(unknown), ", for which no class of floe's models is known; ", key,
            classes.empty() ? " stays as it is" : " has the others",
            " (floe's are DecoderLayer, GatedCrossAttention, PerceiverResampler and ViTBlock)");
    target.page.leave_out(sentence + ".");
    target.page.warn(sentence);
  }
  if (!classes.empty()) target.page.set(key, Value(std::move(classes), value.origin), comment);
}

void auto_wrap_policy(const Value& value, const std::string& comment, Target& target) {
  classes_into("strategy.units", "auto_wrap_policy", value, comment, target);
}
void checkpointing_policy(const Value& value, const std::string& comment, Target& target) {
  classes_into("strategy.activation_checkpointing", "activation_checkpointing_policy", value,
               comment, target);
}

// ---- the strategy ----

void sharding_strategy(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  constexpr std::array kNames = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                 "_hybrid_shard_zero2"};
  constexpr std::array kOwn = {"full_shard", "shard_grad_op", "no_shard", "hybrid",
                               "hybrid_grad_op"};
  const auto number = config::integer_of(value);  // of torch's enumeration, from 1
  const std::string text = lower(last_part(value.scalar_text()));
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text != kNames[i] && number != static_cast<std::int64_t>(i + 1)) continue;
    target.page.set("strategy.sharding", word(kOwn[i], value), comment);
    if (i < 3) return;
    // The second extent of a mesh, else the ranks of a machine.
    const Value* mesh = target.strategy.at("device_mesh");
    const Value* devices = target.trainer.at("devices");
    const auto* extents = mesh ? mesh->as<List>() : nullptr;
    const std::int64_t size = (extents && extents->size() == 2 ? config::integer_of((*extents)[1])
                               : devices                       ? ranks_of_machine(*devices)
                                                               : std::nullopt)
                                  .value_or(0);
    target.page.set(
        "strategy.hybrid_shard_size", Value(size > 0 ? size : std::int64_t{8}, value.origin),
        size > 0 ? "Ranks that share a copy: device_mesh, or the devices of a machine."
                 : "Ranks that share a copy: those of a machine. The file does not say how many.");
    if (size <= 0)
      target.page.warn(
          "strategy.hybrid_shard_size is the number of ranks of a machine, which the file does not "
          "say; 8 is "
          "assumed");
    return;
  }
  refuse(value, str("sharding_strategy is ", value.shown(),
                    ", but must be FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or "
                    "_HYBRID_SHARD_ZERO2"));
}

void device_mesh(const Value&, const std::string& comment, Target& target) {
  if (!target.page.has("strategy.hybrid_shard_size")) target.page.leave_out(comment);
}

void cpu_offload(const Value& value, const std::string& comment, Target& target) {
  const Value* inner = value.as<Map>() ? value.at("offload_params") : nullptr;
  if (value.as<Map>() && !inner && arguments_of(value).find("offload_params"))
    inner = value.at("init_args.offload_params");
  const Value flag(truth(inner             ? *inner
                         : value.as<Map>() ? Value(false)
                                           : value,
                         "cpu_offload"),
                   value.origin);
  target.page.set("strategy.cpu_offload", flag, comment);
}

void state_dict_type(const Value& value, const std::string& comment, Target& target) {
  const std::string text = lower(value.scalar_text());
  if (text != "full" && text != "sharded")
    refuse(value, str("state_dict_type is ", value.shown(), ", but must be full or sharded"));
  target.page.set("checkpoint.state_dict_type", word(text, value), comment);
}

void timeout(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  double seconds = 0;
  const auto number = [](const Value& v) {
    const auto integer = config::integer_of(v);
    const double* real = v.as<double>();
    if (!integer && !real) refuse(v, str("timeout must be a number of seconds, not ", v.shown()));
    return real ? *real : static_cast<double>(*integer);
  };
  if (!value.as<Map>()) {
    seconds = number(value);
  } else {
    for (const auto& [unit, item] : arguments_of(value)) {
      const double factor = unit == "seconds"   ? 1
                            : unit == "minutes" ? 60
                            : unit == "hours"   ? 3600
                            : unit == "days"    ? 86400
                                                : 0;
      if (factor == 0)
        refuse(item, str("timeout.", unit, " is no unit; write seconds, minutes, hours or days"));
      seconds += factor * number(item);
    }
  }
  target.page.set("dist.timeout_s", Value(seconds, value.origin), comment);
}

void backend(const Value& value, const std::string& comment, Target& target) {
  if (!value.is_null())
    target.page.set("dist.backend", word(lower(value.scalar_text()), value), comment);
}

void stage(const Value& value, const std::string& comment, Target& target) {
  const std::int64_t number = whole(value, "stage");
  if (number < 1 || number > 3)
    refuse(value, str("stage is ", number, ", but floe has the stages 1 to 3"));
  target.page.set("strategy.sharding", word(number == 3 ? "full_shard" : "shard_grad_op", value),
                  comment);
}

void offload_if_true(const Value& value, const std::string& comment, Target& target) {
  if (truth(value, "offload_…"))
    target.page.set("strategy.cpu_offload", Value(true, value.origin), comment);
}

void tensor_parallel(const Value& value, const std::string& comment, Target& target) {
  if (config::integer_of(value) == 1) return target.page.leave_out(comment);
  target.page.leave_out(comment);
  target.page.warn(str("tensor_parallel_size is ", value.shown(),
                       ", but floe has no tensor parallelism: all ranks "
                       "share the slices"));
}

}  // namespace

const LightningBlock& strategy_block() {
  static const LightningBlock block{
      "`trainer.strategy`",
      "`FSDPStrategy` with what it hands on to FSDP; `DDPStrategy` is `strategy.sharding: "
      "no_shard`, "
      "`ModelParallelStrategy` (FSDP2) and ZeRO's stages of `DeepSpeedStrategy` by their nearest. "
      "The "
      "words `fsdp`, `fsdp_cpu_offload`, `ddp…` and `deepspeed_stage_N` work too.",
      {
          {"sharding_strategy", "strategy.sharding, strategy.hybrid_shard_size",
           "FULL_SHARD is full_shard, SHARD_GRAD_OP shard_grad_op, NO_SHARD no_shard, HYBRID_SHARD "
           "hybrid, "
           "_HYBRID_SHARD_ZERO2 hybrid_grad_op.",
           sharding_strategy},
          {"device_mesh", "strategy.hybrid_shard_size",
           "With a hybrid sharding_strategy the second extent: ranks that share a copy.",
           device_mesh},
          {"auto_wrap_policy", "strategy.units",
           "Classes whose instances are gathered as one unit, by floe's names. A policy by size "
           "has no "
           "counterpart, and none is needed: the default fits floe's models.",
           auto_wrap_policy},
          {"activation_checkpointing_policy", "strategy.activation_checkpointing",
           "Classes that recompute their forward.", checkpointing_policy},
          {"activation_checkpointing", "strategy.activation_checkpointing",
           "The older name of activation_checkpointing_policy.", checkpointing_policy},
          {"mixed_precision",
           "strategy.mixed_precision.param, strategy.mixed_precision.reduce, "
           "strategy.mixed_precision.buffer",
           "param_dtype, reduce_dtype and buffer_dtype; xlm-core's fsdp_bf16_mixed_precision is "
           "bf16, fp32, "
           "fp32.",
           mixed_precision},
          {"cpu_offload", "strategy.cpu_offload", "Slices and optimizer state in host memory.",
           cpu_offload},
          {"state_dict_type", "checkpoint.state_dict_type",
           "sharded is a directory of torch.distributed.checkpoint here too; full is one file, "
           "written without "
           "any rank holding it all.",
           state_dict_type},
          {"process_group_backend", "dist.backend", "nccl or gloo.", backend},
          {"timeout", "dist.timeout_s", "Seconds, or a datetime.timedelta.", timeout},
          {"stage", "strategy.sharding",
           "Of DeepSpeed: 3 is full_shard, 1 and 2 are shard_grad_op.", stage},
          {"offload_optimizer", "strategy.cpu_offload", "Of DeepSpeed.", offload_if_true},
          {"offload_parameters", "strategy.cpu_offload", "Of DeepSpeed.", offload_if_true},
          {"data_parallel_size", "", "Of ModelParallelStrategy: all ranks share the slices."},
          {"tensor_parallel_size", "", "Of ModelParallelStrategy: floe has no tensor parallelism.",
           tensor_parallel},
          {"save_distributed_checkpoint", "",
           "Of ModelParallelStrategy: checkpoint.state_dict_type, sharded unless "
           "it is set."},
          {"use_orig_params", "",
           "Parameters keep their names and their own decay and rates, always."},
          {"sync_module_states", "",
           "Every rank reads its own slices from the files, so there is nothing to send."},
          {"param_init_fn", "",
           "Models are built without memory and filled slice by slice, always."},
          {"limit_all_gathers", "",
           "Gathered parameters live in a pool of fixed size, so no limit is needed."},
          {"forward_prefetch", "",
           "strategy.prefetch says how many units are gathered ahead, in forward and "
           "backward."},
          {"backward_prefetch", "",
           "strategy.prefetch says how many units are gathered ahead, in forward and "
           "backward."},
          {"ignored_modules", "",
           "There is nothing to leave out: frozen and trainable parameters mix freely; "
           "strategy.frozen.residency keeps frozen ones whole.",
           warn_if_set},
          {"ignored_states", "", "As ignored_modules.", warn_if_set},
          {"ignored_parameters", "", "As ignored_modules.", warn_if_set},
          {"process_group", "",
           "strategy.sharding and hybrid_shard_size say which ranks share what."},
          {"device_id", "", "Rank i of a machine takes its GPU i."},
          {"parallel_devices", "", "Rank i of a machine takes its GPU i."},
          {"accelerator", "", "dist.device, which is auto."},
          {"cluster_environment", "",
           "Ranks find each other by what torchrun, SLURM, OpenMPI or floe launch set."},
          {"checkpoint_io", "",
           "floe writes its checkpoints itself, behind the training (checkpoint.async)."},
          {"precision_plugin", "", "precision.autocast and strategy.mixed_precision."},
          {"find_unused_parameters", "", "Of DDP: a parameter without a gradient needs no switch."},
          {"static_graph", "",
           "Of DDP: the order of units is recorded in the first step, and may change."},
          {"gradient_as_bucket_view", "",
           "Of DDP: gradients are accumulated in the buffer that is reduced, always."},
          {"ddp_comm_hook", "",
           "Of DDP: strategy.mixed_precision.reduce is the type of the reduction."},
          {"bucket_cap_mb", "", "Of DDP: a unit's gradients are reduced together."},
          {"start_method", "", "Of DDP: floe launch starts processes."},
      }};
  return block;
}

}  // namespace floe::migrate
