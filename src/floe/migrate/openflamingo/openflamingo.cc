#include "floe/migrate/openflamingo/openflamingo.h"

#include <algorithm>
#include <set>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/migrate/openflamingo/flags.h"
#include "floe/migrate/openflamingo/hub.h"
#include "floe/migrate/openflamingo/launcher.h"

namespace floe::migrate {
namespace {

using config::List;
using config::Value;

class Translation {
 public:
  Translation(const std::vector<std::string>& command, const OpenFlamingoOptions& options)
      : models_(options.models),
        launch_(read_launch(command, page_)),
        flags_(launch_.flags, page_) {}

  Page take() {
    run_section();
    model_section();
    data_section();
    copy_plain_flags();
    train_section();
    strategy_section();
    precision_section();
    checkpoint_section();
    wandb_section();
    ranks_section();
    page_.set_command(launch_.command());
    page_.set_world(launch_.world);
    return std::move(page_);
  }

 private:
  bool is_on(std::string_view flag) const { return flags_.toggle(flag); }

  // "--seed 7: Of everything random ..."
  std::string comment(std::string_view name) const {
    const auto& all = openflamingo_flags();
    const auto flag =
        std::find_if(all.begin(), all.end(), [&](const Flag& f) { return f.name == name; });
    return str(flags_.shown(name), ": ", flag->remark);
  }
  void copy(std::string_view name, std::string_view key) {
    page_.set(key, flags_.value(name), comment(name));
  }
  void say_none(std::string_view name) {
    if (flags_.given(name)) page_.leave_out(comment(name));
  }

  // ---- run ----

  void run_section() {
    const std::string path = flags_.text("--run_name");
    const auto end = path.find_last_not_of('/');
    const std::string whole = end == std::string::npos ? "" : path.substr(0, end + 1);
    const auto slash = whole.rfind('/');
    const std::string name = slash == std::string::npos ? whole : whole.substr(slash + 1);
    require<ConfigError>(!name.empty() && name != "." && name != "..", "migrate: --run_name '",
                         path, "' names no folder of its own for the run");
    page_.set(
        "run.name", flags_.value("--run_name", name),
        str(flags_.shown("--run_name"), ": The run's folder has this name; so has the W&B run."));
    if (slash != std::string::npos)
      page_.set("run.dir", flags_.value("--run_name", slash == 0 ? "/" : whole.substr(0, slash)),
                "");
    if (!flags_.text("--resume_from_checkpoint").empty())
      copy("--resume_from_checkpoint", "run.resume");
    else
      page_.add_comment("run.name",
                        str("train.py would go on from ", shell_word(whole + "/checkpoint_N.pt"),
                            "; floe begins anew unless run.resume names that file."));
  }

  // ---- model ----

  // Where a model of the hub will be; says once how to bring it.
  std::string downloaded(const std::string& name, const std::string& files) {
    const std::string folder = models_ + "/" + name;
    const std::string line =
        str("huggingface-cli download ", name, files, " --local-dir ", shell_word(folder));
    if (downloads_.insert(line).second) page_.add_preparation(line);
    return folder;
  }

  void model_section() {
    page_.set("model.type", Value(std::string("flamingo")), "");
    const std::string lm = flags_.text("--lm_path");
    require<ConfigError>(!lm.empty(), "migrate: --lm_path is empty; name the language model");
    page_.set("model.lm", flags_.value("--lm_path", is_hub_name(lm) ? downloaded(lm, "") : lm),
              comment("--lm_path"));
    vision();
    tokenizer(lm);
    if (is_on("--freeze_lm_embeddings"))
      copy("--freeze_lm_embeddings", "model.freeze_lm_embeddings");
    page_.set(
        "model.dropout", Value(std::string("config")),
        "train.py has no flag for it: the language model's own dropout (of OPT, for one) is on "
        "while it trains. floe's default is 0.");
  }

  void vision() {
    const std::string path = flags_.text("--vision_encoder_path");
    require<ConfigError>(!path.empty(),
                         "migrate: --vision_encoder_path is empty; name the image tower");
    const TowerFiles tower = find_tower(path, flags_.text("--vision_encoder_pretrained"), models_);
    if (!tower.repository.empty()) downloaded(tower.repository, "");
    page_.set("model.vision", flags_.value("--vision_encoder_path", tower.place),
              str(flags_.shown("--vision_encoder_path"), "; ",
                  flags_.shown("--vision_encoder_pretrained"), ": ", tower.what));
    if (!tower.warning.empty()) page_.warn(tower.warning);
  }

  void tokenizer(const std::string& lm) {
    const std::string path = flags_.text("--tokenizer_path");
    // Of the default, opt-30b, the weights are 60 GB that nobody needs.
    constexpr const char* kTokenizerFiles =
        " --include 'tokenizer*' 'vocab*' 'merges*' 'special_tokens*' 'added_tokens*'";
    const bool from_hub = path != lm && is_hub_name(path);
    const std::string place = path == lm ? *page_.tree().at("model.lm")->as<std::string>()
                              : from_hub ? downloaded(path, kTokenizerFiles)
                                         : path;
    page_.set("model.tokenizer",
              path == lm ? Value(place, flags_.origin("--tokenizer_path"))
                         : flags_.value("--tokenizer_path", place),
              comment("--tokenizer_path"));
    if (!flags_.given("--tokenizer_path") && lm.find("opt") == std::string::npos)
      page_.warn(str("--tokenizer_path is not given, and train.py's default, ", path,
                     ", is hardly the tokenizer of ", shell_word(lm),
                     "; if it is not meant, remove model.tokenizer"));
  }

  // ---- data ----

  void data_section() {
    for (const char* source : {"laion", "mmc4"}) {
      const std::string flag = str("--", source, "_shards");
      if (flags_.text(flag).empty())
        missing_.emplace_back(source);
      else
        copy(flag, str("data.", source, ".shards"));
    }
    require<ConfigError>(
        missing_.size() < 2,
        "migrate: neither --laion_shards nor --mmc4_shards is given, so that there "
        "is nothing to train on");
    for (const std::string& source : missing_)
      page_.warn(str("--", source,
                     "_shards is not given, without which train.py does not start; the "
                     "configuration trains on the other source alone"));
    const std::int64_t workers = flags_.integer("--workers");
    if (flags_.given("--workers"))
      page_.set(
          "data.workers", flags_.value("--workers", workers == 0 ? "1" : flags_.text("--workers")),
          comment("--workers") + (workers == 0 ? " With 0 train.py reads in one stream too." : ""));
    if (is_on("--dataset_resampled")) copy("--dataset_resampled", "data.resampled");
  }

  // A key of a source that the run does not have.
  bool is_of_missing_source(std::string_view key) const {
    return std::any_of(missing_.begin(), missing_.end(), [&](const std::string& source) {
      return key.starts_with("data." + source + ".");
    });
  }

  void copy_plain_flags() {
    for (const Flag& flag : openflamingo_flags()) {
      const bool given = flags_.given(flag.name);
      if (flag.copy == Copy::by_hand || (flag.copy == Copy::if_given && !given)) continue;
      if (!is_of_missing_source(flag.keys))
        copy(flag.name, flag.keys);
      else if (given)
        page_.leave_out(str(flags_.shown(flag.name), ": the run does not have this source."));
    }
    if (page_.has("data.mmc4") && !flags_.given("--mmc4_textsim_threshold"))
      page_.warn(
          "--mmc4_textsim_threshold is not given, and no picture of MMC4 is as similar to its "
          "text as train.py's default of 30; its authors used 0.24");
  }

  // Batches of a source in an epoch, on each rank.
  std::int64_t batches(const std::string& source, int world) const {
    const std::int64_t samples = flags_.integer(str("--train_num_samples_", source));
    const std::int64_t batch =
        std::max<std::int64_t>(1, flags_.integer(str("--batch_size_", source)));
    const std::int64_t workers = std::max<std::int64_t>(1, flags_.integer("--workers"));
    const std::int64_t all = (samples + batch * world - 1) / (batch * world);
    return (all + workers - 1) / workers * workers;
  }

  void train_section() {
    const std::string schedule = flags_.text("--lr_scheduler");
    const bool known = schedule == "constant" || schedule == "linear" || schedule == "cosine";
    if (flags_.given("--lr_scheduler")) {
      page_.set("train.schedule.type",
                flags_.value("--lr_scheduler", known ? schedule : "constant"),
                comment("--lr_scheduler"));
      if (!known)
        page_.warn(str("--lr_scheduler ", shell_word(schedule),
                       " is none that train.py knows: it takes a "
                       "constant rate, and so does the configuration"));
    }
    const std::int64_t accumulation = flags_.integer("--gradient_accumulation_steps");
    if (known && schedule != "constant" && accumulation > 1)
      page_.add_comment(
          "train.schedule.type",
          str("floe's rate ends at 0 with the run; train.py's has only gone 1/", accumulation,
              " of the way by then, because it counts batches where its schedule counts "
              "updates."));
    if (!missing_.empty()) return;
    const int world = launch_.world.value_or(1);
    const std::int64_t laion = batches("laion", world), mmc4 = batches("mmc4", world);
    const std::int64_t laion_alone =
        flags_.integer("--train_num_samples_laion") /
        std::max<std::int64_t>(1, flags_.integer("--batch_size_laion"));
    const std::int64_t mmc4_alone = flags_.integer("--train_num_samples_mmc4") /
                                    std::max<std::int64_t>(1, flags_.integer("--batch_size_mmc4"));
    if (laion_alone != mmc4_alone || laion != mmc4)
      page_.warn(str("an epoch has ", laion, " batches of LAION and ", mmc4, " of MMC4 on ",
                     counted(world, "rank"),
                     "; train.py and floe both refuse a run in which they differ: change "
                     "--train_num_samples or --batch_size"));
    else if (launch_.world)
      page_.add_comment("train.epochs",
                        str("Here an epoch has ", laion, " batches of each source on ",
                            counted(world, "rank"), "."));
  }

  // ---- strategy ----

  void strategy_section() {
    const bool hybrid = flags_.text("--fsdp_sharding_strategy") == "hybrid";
    if (!is_on("--fsdp")) {
      page_.set("strategy.sharding", Value(std::string("no_shard"), flags_.origin("--fsdp")),
                "--fsdp (not given): Every rank holds everything, as with DDP. full_shard gives "
                "the same numbers and holds less.");
      for (const char* flag : {"--fsdp_use_orig_params", "--fsdp_sharding_strategy"})
        if (flags_.given(flag))
          page_.leave_out(str(flags_.shown(flag), ": has no effect without --fsdp."));
    } else {
      page_.set("strategy.sharding",
                Value(std::string(hybrid ? "hybrid" : "full_shard"), flags_.origin("--fsdp")),
                comment("--fsdp") + (flags_.given("--fsdp_sharding_strategy")
                                         ? str(" ", comment("--fsdp_sharding_strategy"))
                                         : std::string()));
      if (hybrid) hybrid_size();
      if (is_on("--fsdp_use_orig_params"))
        page_.leave_out(str("--fsdp_use_orig_params: ",
                            "floe always works as with it: decay by parameter, and "
                            "exactly two embedding rows train."));
      else
        without_orig_params();
    }
    if (is_on("--gradient_checkpointing")) {
      List classes;
      for (const char* name : {"DecoderLayer", "GatedCrossAttention", "PerceiverResampler"})
        classes.emplace_back(std::string(name));
      page_.set("strategy.activation_checkpointing",
                Value(std::move(classes), flags_.origin("--gradient_checkpointing")),
                comment("--gradient_checkpointing"));
    }
  }

  void hybrid_size() {
    const int size = launch_.per_machine.value_or(8);
    page_.set("strategy.hybrid_shard_size",
              Value(static_cast<std::int64_t>(size), flags_.origin("--fsdp_sharding_strategy")),
              launch_.per_machine ? "Ranks of a machine, as the launcher starts them."
                                  : "Ranks of a machine; the command does not say how many.");
    if (!launch_.per_machine)
      page_.warn(
          "strategy.hybrid_shard_size is the number of ranks of a machine, which the command does "
          "not say; 8 is assumed");
  }

  void without_orig_params() {
    page_.set("train.optimizer.decay", Value(List(), flags_.origin("--fsdp_use_orig_params")),
              "--fsdp without --fsdp_use_orig_params: everything decays. With it only gated "
              "cross-attention does, which is floe's default.");
    if (!is_on("--freeze_lm_embeddings"))
      page_.warn(
          "with --fsdp and without --fsdp_use_orig_params train.py trains the whole embedding "
          "table, which its README advises against; floe trains the rows of <image> and "
          "<|endofchunk|>");
  }

  void precision_section() {
    const std::string precision = flags_.text("--precision");
    const bool autocast = precision.starts_with("amp_");
    const std::string narrow = autocast ? "bf16" : precision;
    const auto dtype = [&](const std::string& name) {
      return Value(name, flags_.origin("--precision"));
    };
    // FSDP is told to reduce and to keep buffers in the narrow type; DDP knows neither.
    const std::string other = is_on("--fsdp") ? narrow : "fp32";
    const std::string what =
        autocast              ? "Autocast over weights in fp32."
        : precision == "fp32" ? "Everything in fp32; floe's default is bf16."
        : precision == "bf16"
            ? "Computed in bf16, with fp32 masters of what trains."
            : "Computed in fp16, with fp32 masters of what trains and a scaled loss.";
    page_.set("strategy.mixed_precision.param", dtype(autocast ? "fp32" : narrow),
              str(flags_.shown("--precision"), ": ", what));
    page_.set("strategy.mixed_precision.reduce", dtype(other),
              is_on("--fsdp") && narrow != "fp32"
                  ? "With --fsdp train.py reduces gradients, and keeps buffers, in that type."
                  : "");
    page_.set("strategy.mixed_precision.buffer", dtype(other), "");
    if (autocast)
      page_.set(
          "precision.autocast", dtype("bf16"),
          "With strategy.mixed_precision.param: bf16 the frozen weights take half the memory.");
    if (precision == "bf16" || precision == "fp16")
      page_.add_comment("strategy.mixed_precision.param",
                        str("train.py itself fails with ", precision, ": it casts token ids too."));
  }

  // ---- checkpoints ----

  void checkpoint_section() {
    page_.set("checkpoint.every_steps", Value(), "train.py saves at the end of every epoch.");
    page_.set("checkpoint.every_epochs", Value(std::int64_t{1}), "");
    if (is_on("--delete_previous_checkpoint"))
      copy("--delete_previous_checkpoint", "checkpoint.delete_previous_checkpoint");
    else
      page_.set("checkpoint.keep", Value(),
                "--delete_previous_checkpoint (not given): All checkpoints stay.");
    page_.set("checkpoint.state_dict_type", Value(std::string("trainable")),
              "checkpoint_N.pt in OpenFlamingo's layout, for what reads train.py's files (N counts "
              "updates). sharded, floe's default, is a directory that all ranks write.");
  }

  // ---- Weights & Biases ----

  // Takes a variable off the command's front.
  std::string taken_variable(const std::string& name) {
    std::string value;
    std::erase_if(launch_.environment, [&](const auto& variable) {
      if (variable.first == name) value = variable.second;
      return variable.first == name;
    });
    return value;
  }

  void wandb_section() {
    const std::string mode = taken_variable("WANDB_MODE"),
                      project = taken_variable("WANDB_PROJECT"),
                      entity = taken_variable("WANDB_ENTITY");
    const bool to_wandb = is_on("--report_to_wandb");
    require<ConfigError>(
        to_wandb || !is_on("--save_checkpoints_to_wandb"),
        "migrate: --save_checkpoints_to_wandb needs --report_to_wandb, in train.py too");
    if (!to_wandb) {
      for (const char* flag : {"--wandb_project", "--wandb_entity"})
        if (flags_.given(flag))
          page_.leave_out(str(flags_.shown(flag), ": has no effect without --report_to_wandb."));
      say_none("--offline");
      return;
    }
    const bool offline = is_on("--offline") || mode == "offline" || mode == "dryrun";
    const std::string wanted = mode == "disabled" && !is_on("--offline") ? "disabled"
                               : offline                                 ? "offline"
                                                                         : "online";
    page_.set("log.wandb.mode", Value(wanted, flags_.origin("--report_to_wandb")),
              comment("--report_to_wandb") +
                  (is_on("--offline") ? str(" ", comment("--offline")) : std::string()) +
                  (mode.empty() ? std::string() : str(" WANDB_MODE=", shell_word(mode), ".")));
    const std::string name = flags_.text("--wandb_project");
    page_.set(
        "log.wandb.project",
        flags_.value("--wandb_project", !name.empty()      ? name
                                        : !project.empty() ? project
                                                           : "uncategorized"),
        comment("--wandb_project") +
            (project.empty() ? std::string() : str(" WANDB_PROJECT=", shell_word(project), ".")));
    const std::string team = flags_.text("--wandb_entity");
    if (!team.empty() || !entity.empty())
      page_.set("log.wandb.entity", flags_.value("--wandb_entity", team.empty() ? entity : team),
                comment("--wandb_entity"));
    if (is_on("--save_checkpoints_to_wandb"))
      copy("--save_checkpoints_to_wandb", "log.wandb.checkpoints");
  }

  // ---- ranks ----

  void ranks_section() {
    if (flags_.given("--dist-backend")) backend();
    if (flags_.given("--dist-url")) url();
    say_none("--horovod");
    say_none("--no-set-device-rank");
    if (is_on("--no-set-device-rank"))
      page_.warn(
          "--no-set-device-rank: floe's rank i of a machine takes GPU i, so let each rank see all "
          "GPUs of its machine (CUDA_VISIBLE_DEVICES, SLURM's --gpus-per-task)");
    say_none("--use_media_placement_augmentation");
    if (is_on("--use_media_placement_augmentation"))
      page_.warn(
          "--use_media_placement_augmentation has no counterpart: text looks at the picture before "
          "it, never at the next one");
  }

  void backend() {
    const std::string backend = flags_.text("--dist-backend");
    if (backend != "nccl" && backend != "gloo") {
      page_.leave_out(
          str(flags_.shown("--dist-backend"), ": floe has nccl and gloo, and takes what fits."));
      page_.warn(str("--dist-backend ", shell_word(backend),
                     " has no counterpart; dist.backend stays auto"));
      return;
    }
    copy("--dist-backend", "dist.backend");
    if (backend == "gloo")
      page_.set("dist.device", Value(std::string("cuda"), flags_.origin("--dist-backend")),
                "train.py computes on GPUs whatever the backend is; cpu if there are none.");
  }

  void url() {
    const std::string url = flags_.text("--dist-url");
    constexpr std::string_view kTcp = "tcp://";
    const auto colon = url.rfind(':');
    if (url == "env://") {
      page_.set("dist.init", flags_.value("--dist-url", "env"), comment("--dist-url"));
    } else if (url.starts_with(kTcp) && colon > kTcp.size()) {
      if (launch_.own_launcher) {
        page_.leave_out(str(flags_.shown("--dist-url"), ": floe launch finds a port of its own."));
        return;
      }
      taken_variable("MASTER_ADDR");
      taken_variable("MASTER_PORT");
      launch_.environment.emplace_back("MASTER_ADDR", url.substr(kTcp.size(), colon - kTcp.size()));
      launch_.environment.emplace_back("MASTER_PORT", url.substr(colon + 1));
      page_.add_note(comment("--dist-url"));
    } else {
      page_.leave_out(str(flags_.shown("--dist-url"), ": ranks meet by what the launcher sets."));
      page_.warn(str("--dist-url ", shell_word(url),
                     " has no counterpart; ranks meet by what the launcher sets"));
    }
  }

  Page page_{"From OpenFlamingo's train.py, by floe migrate."};
  std::string models_;
  Launch launch_;
  FlagValues flags_;
  std::vector<std::string> missing_;  // sources without shards
  std::set<std::string> downloads_;
};

}  // namespace

Page from_openflamingo(const std::vector<std::string>& command,
                       const OpenFlamingoOptions& options) {
  for (const std::string& word : command)
    require<ConfigError>(is_utf8(word), "migrate: the word '", shown_bytes(word),
                         "' of the command is not UTF-8, which a configuration must be");
  return Translation(command, options).take();
}

}  // namespace floe::migrate
