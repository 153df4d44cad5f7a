#include "floe/core/error.h"
#include "floe/migrate/openflamingo/sections.h"

namespace floe::migrate {
namespace {

using config::Value;

// Takes a variable off the command's front.
std::string taken_variable(Launch& launch, const std::string& name) {
  std::string value;
  std::erase_if(launch.environment, [&](const auto& variable) {
    if (variable.first == name) value = variable.second;
    return variable.first == name;
  });
  return value;
}

void translate_backend(Translation& t) {
  const std::string backend = t.flags.text("--dist-backend");
  if (backend != "nccl" && backend != "gloo") {
    t.page.leave_out(
        str(t.flags.shown("--dist-backend"), ": floe has nccl and gloo, and takes what fits."));
    t.page.warn(str("--dist-backend ", shell_word(backend),
                    " has no counterpart; dist.backend stays auto"));
    return;
  }
  t.copy("--dist-backend", "dist.backend");
  if (backend == "gloo")
    t.page.set("dist.device", Value(std::string("cuda"), t.flags.origin("--dist-backend")),
               "train.py computes on GPUs whatever the backend is; cpu if there are none.");
}

void translate_url(Translation& t) {
  const std::string url = t.flags.text("--dist-url");
  constexpr std::string_view kTcp = "tcp://";
  const auto colon = url.rfind(':');
  if (url == "env://") {
    t.page.set("dist.init", t.flags.value("--dist-url", "env"), t.comment("--dist-url"));
  } else if (url.starts_with(kTcp) && colon > kTcp.size()) {
    if (t.launch.own_launcher) {
      t.page.leave_out(str(t.flags.shown("--dist-url"), ": floe launch finds a port of its own."));
      return;
    }
    taken_variable(t.launch, "MASTER_ADDR");
    taken_variable(t.launch, "MASTER_PORT");
    t.launch.environment.emplace_back("MASTER_ADDR", url.substr(kTcp.size(), colon - kTcp.size()));
    t.launch.environment.emplace_back("MASTER_PORT", url.substr(colon + 1));
    t.page.add_note(t.comment("--dist-url"));
  } else {
    t.page.leave_out(str(t.flags.shown("--dist-url"), ": ranks meet by what the launcher sets."));
    t.page.warn(str("--dist-url ", shell_word(url),
                    " has no counterpart; ranks meet by what the launcher sets"));
  }
}

}  // namespace

void translate_wandb(Translation& t) {
  const std::string mode = taken_variable(t.launch, "WANDB_MODE"),
                    project = taken_variable(t.launch, "WANDB_PROJECT"),
                    entity = taken_variable(t.launch, "WANDB_ENTITY");
  const bool to_wandb = t.is_on("--report_to_wandb");
  require<ConfigError>(
      to_wandb || !t.is_on("--save_checkpoints_to_wandb"),
      "migrate: --save_checkpoints_to_wandb needs --report_to_wandb, in train.py too");
  if (!to_wandb) {
    for (const char* flag : {"--wandb_project", "--wandb_entity"})
      if (t.flags.given(flag))
        t.page.leave_out(str(t.flags.shown(flag), ": has no effect without --report_to_wandb."));
    for (const auto& [name, value] :
         {std::pair("WANDB_MODE", mode), std::pair("WANDB_PROJECT", project),
          std::pair("WANDB_ENTITY", entity)})
      if (!value.empty())
        t.page.leave_out(
            str(name, "=", shell_word(value), ": has no effect without --report_to_wandb."));
    t.leave_out("--offline");
    return;
  }
  const bool offline = t.is_on("--offline") || mode == "offline" || mode == "dryrun";
  const std::string wanted = mode == "disabled" && !t.is_on("--offline") ? "disabled"
                             : offline                                   ? "offline"
                                                                         : "online";
  t.page.set("log.wandb.mode", Value(wanted, t.flags.origin("--report_to_wandb")),
             t.comment("--report_to_wandb") +
                 (t.is_on("--offline") ? str(" ", t.comment("--offline")) : std::string()) +
                 (mode.empty() ? std::string() : str(" WANDB_MODE=", shell_word(mode), ".")));
  const std::string name = t.flags.text("--wandb_project");
  t.page.set(
      "log.wandb.project",
      t.flags.value("--wandb_project", !name.empty()      ? name
                                       : !project.empty() ? project
                                                          : "uncategorized"),
      t.comment("--wandb_project") +
          (project.empty() ? std::string() : str(" WANDB_PROJECT=", shell_word(project), ".")));
  const std::string team = t.flags.text("--wandb_entity");
  if (!team.empty() || !entity.empty())
    t.page.set("log.wandb.entity", t.flags.value("--wandb_entity", team.empty() ? entity : team),
               t.comment("--wandb_entity"));
  if (t.is_on("--save_checkpoints_to_wandb"))
    t.copy("--save_checkpoints_to_wandb", "log.wandb.checkpoints");
}

void translate_ranks(Translation& t) {
  if (t.flags.given("--dist-backend")) translate_backend(t);
  if (t.flags.given("--dist-url")) translate_url(t);
  t.leave_out("--horovod");
  t.leave_out("--no-set-device-rank");
  if (t.is_on("--no-set-device-rank"))
    t.page.warn(
        "--no-set-device-rank: floe's rank i of a machine takes GPU i, so let each rank see all "
        "GPUs of its machine (CUDA_VISIBLE_DEVICES, SLURM's --gpus-per-task)");
  t.leave_out("--use_media_placement_augmentation");
  if (t.is_on("--use_media_placement_augmentation"))
    t.page.warn(
        "--use_media_placement_augmentation has no counterpart: text looks at the picture before "
        "it, never at the next one");
}

}  // namespace floe::migrate
