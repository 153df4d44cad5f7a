#include <algorithm>
#include <filesystem>
#include <iostream>

#include "floe/checkpoint/load/resume.h"
#include "floe/cli/command.h"
#include "floe/cli/commands/export_model.h"
#include "floe/cli/model_card.h"
#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/core/bytes.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostCardBytes = 1 << 24;

void refuse_together(const Options& options, const std::string& one,
                     std::initializer_list<const char*> others) {
  for (const char* other : others)
    require<ConfigError>(!options.has(one) || !options.has(other), "export: ", one, " and ", other,
                         " exclude each other");
}

DType parse_dtype(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  require<ConfigError>(
      dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
      "export: --dtype is '", name, "', but must be fp32, bf16, fp16 or fp64");
  return *dtype;
}

ExportRequest request_of(const Options& options) {
  const Args& words = split_words(options.words()).paths;
  require<ConfigError>(words.size() == 2,
                       "export: say what and where to: floe export MODEL OUT; 'floe export --help' "
                       "has examples");
  refuse_together(options, "--raw",
                  {"--ema", "--trainable-only", "--merge-lora", "--no-merge-lora", "--hub-layout",
                   "--model", "--base", "--strip-prefix"});
  refuse_together(options, "--merge-lora", {"--no-merge-lora"});
  refuse_together(options, "--trainable-only", {"--merge-lora", "--no-merge-lora"});
  refuse_together(options, "--model", {"--base", "--strip-prefix"});
  refuse_together(options, "--no-card", {"--license", "--hub-layout"});
  refuse_together(options, "--raw", {"--license"});
  ExportRequest request{.source = words[0], .out = words[1]};
  if (const auto size = options.value("--max-shard-size")) {
    request.max_shard_bytes = parse_bytes(*size);
    require<ConfigError>(request.max_shard_bytes > 0, "export: --max-shard-size is '", *size,
                         "', but must be more than 0");
  }
  if (const auto dtype = options.value("--dtype")) request.dtype = parse_dtype(*dtype);
  request.ema = options.has("--ema");
  request.trainable_only = options.has("--trainable-only");
  request.raw = options.has("--raw");
  request.hub_layout = options.has("--hub-layout");
  request.merge_lora = !options.has("--no-merge-lora");
  request.force = options.has("--force");
  request.model_yaml = options.value("--model").value_or("");
  request.base = options.value("--base").value_or("");
  request.strip_prefixes = options.values("--strip-prefix");
  request.card = !options.has("--no-card") && !request.raw;
  if (const auto license = options.value("--license")) require_license(request.license = *license);
  for (const char* name : {"--max-shard-size", "--hub-layout", "--base", "--license", "--no-card"})
    require<ConfigError>(!options.has(name) || !request.to_file(), "export: ", name,
                         " is for a folder, but '", request.out, "' is a file");
  return request;
}

// The checkpoint says nothing of a model: options that need one cannot be fulfilled.
void require_no_model_needed(const ExportRequest& request, const Options& options) {
  for (const char* name : {"--trainable-only", "--merge-lora", "--no-merge-lora"})
    require<ConfigError>(!options.has(name), "export: ", name, " needs the model, but '",
                         request.source,
                         "' does not say of which model it is; name it with --model FILE.yaml");
  require<ConfigError>(
      !request.hub_layout || !request.base.empty(),
      "export: --hub-layout needs "
      "config.json, but '",
      request.source,
      "' does not say of which model it is; name the model with --model FILE.yaml, "
      "or a Hugging Face folder with --base");
}

// Not a folder of somebody else's model, whose weights are written as they are.
bool is_of_floe(const Located& located) {
  return located.kind != PathKind::model || is_known_model(located.path);
}

// What is written and what is read by their only names.
fs::path real(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::canonical(path, error);
  return error ? fs::path() : found;
}

bool is_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// --force removes what was at OUT, a folder with all that is in it: never a run, and never what is
// read here.
void require_not_lost(const ExportRequest& request, const Located& located,
                      const std::optional<UsedModel>& model) {
  const fs::path out = real(request.out);
  if (out.empty()) return;  // nothing is there
  require<ConfigError>(
      request.to_file() || checkpoint::run_at(request.out).empty(), "export: '", request.out,
      "' is a run, which is not replaced by what is exported; name another folder");
  const auto check = [&](const std::string& read, bool whole_folder) {
    const fs::path there = read.empty() ? fs::path() : real(read);
    const bool lost =
        !there.empty() && (is_in(there, out) || (whole_folder && out.parent_path() == there));
    require<ConfigError>(!lost, "export: '", read, "' is read and would be lost with what is at '",
                         request.out, "'; name another place");
  };
  for (const std::string& read : {located.path, request.checkpoint, request.model_yaml})
    check(read, /*whole_folder=*/false);
  check(request.base, /*whole_folder=*/true);
  if (!model) return;
  const models::ModelConfig& config = model->config;
  for (const std::string& read : {config.lm, config.vision, config.tokenizer, config.weights})
    check(read, /*whole_folder=*/true);
  if (config.lora) check(config.lora->weights, /*whole_folder=*/true);
}

ExportResult write(const ExportRequest& request, const std::optional<UsedModel>& model,
                   const std::string& place) {
  if (request.raw) return export_raw(request, place);
  if (!model) return export_weights(request, place);
  try {
    return export_model(request, *model, place);
  } catch (const ConfigError& error) {
    throw ConfigError(str(error.what(), " (the model is that of ", model->origin, ")"));
  }
}

// A README.md that somebody has written stays, although the folder around it is replaced.
void add_card(const ExportRequest& request, const std::optional<UsedModel>& model,
              const ExportResult& result, const std::string& folder) {
  const std::string before = request.out + "/README.md";
  if (path_exists(before)) {
    const std::string text = read_text(before, kMostCardBytes);
    if (!is_model_card(text)) {
      log::warn("export: '", before, "' was not written by floe and stays as it is");
      return write_file_atomically(folder + "/README.md", text);
    }
  }
  // Of bare weights there is nothing to tell.
  const bool is_known = model || !request.base.empty() || !request.license.empty();
  if (!request.card || !is_known) return;
  const fs::path out = fs::absolute(fs::path(request.out + "/")).lexically_normal().parent_path();
  const ModelCard card{.name = out.filename().string(),
                       .exported = result,
                       .model = model,
                       .checkpoint = request.checkpoint,
                       .base = request.base,
                       .license = request.license,
                       .adapters = !request.merge_lora,
                       .trained_part = request.trainable_only,
                       .ema = request.ema};
  write_file_atomically(folder + "/README.md", model_card(card));
}

Exit run_export(const Args& args) {
  const Options options(kExportCommand, args);
  ExportRequest request = request_of(options);
  const Args changes = split_words(options.words()).changes;
  require<ConfigError>(request.force || !path_exists(request.out), "export: '", request.out,
                       "' is there already; name another, or replace it with --force");
  const Located located = locate("export", request.source, Wanted::weights);
  require<ConfigError>(request.model_yaml.empty() || located.kind != PathKind::yaml,
                       "export: --model says of which model weights are, but '", request.source,
                       "' is a model itself");
  request.checkpoint = located.checkpoint;
  std::optional<UsedModel> model;
  if (!request.raw && request.base.empty() && request.strip_prefixes.empty() && is_of_floe(located))
    model = find_model("export", located, changes, request.model_yaml);
  if (model) request.checkpoint = model->checkpoint;
  if (!model) {
    require_no_model_needed(request, options);
    require<ConfigError>(changes.empty(), "export: '", changes.empty() ? "" : changes[0],
                         "' has no effect: weights are written as they are here");
    require<ConfigError>(located.kind != PathKind::yaml,
                         "export: a YAML is exported as a model; leave "
                         "out --raw, --base and --strip-prefix");
    if (located.kind == PathKind::model) request.checkpoint = located.path;
  }

  require<ConfigError>(!request.ema || !request.checkpoint.empty(),
                       "export: --ema needs a checkpoint; '", request.source, "' is none");

  require_not_lost(request, located, model);
  ExportResult result;
  if (request.to_file()) {
    const fs::path above = fs::absolute(request.out).parent_path();
    std::error_code ignored;
    fs::create_directories(above, ignored);
    result = write(request, model, request.out);
  } else {
    AtomicFolder folder(request.out, request.force ? AtomicFolder::Existing::replace
                                                   : AtomicFolder::Existing::refuse);
    result = write(request, model, folder.path());
    add_card(request, model, result, folder.path());
    folder.commit();
  }
  std::cout << (request.checkpoint.empty() ? request.source : request.checkpoint) << " -> "
            << request.out << ": " << result.what << ", " << result.num_tensors << " tensors, "
            << format_bytes(result.bytes) << "\n";
  if (request.hub_layout)
    std::cout << "upload: hf upload YOUR_NAME/"
              << fs::path(request.out + "/").parent_path().filename().string() << " " << request.out
              << "\n";
  return Exit::done;
}

}  // namespace

const Command kExportCommand{
    .name = "export",
    .summary = "model-only weights of a run or checkpoint: safetensors, Hugging Face folder, PEFT",
    .about = R"(usage: floe export MODEL OUT [key=value] [options]

Model-only weights. MODEL is a run folder (its newest checkpoint), a checkpoint (a directory of
torch.distributed.checkpoint written by floe, FSDP, DDP or Lightning, a file of torch.save or
safetensors), an exported folder, or a YAML with a model. OUT is a file (.safetensors, .pt, .pth), else a
folder. Needs neither ranks nor a GPU; whatever the size, memory stays bounded.

A checkpoint of a run of floe becomes a whole model: what it does not have comes from the files that
the run's configuration names. A language model becomes a Hugging Face folder, a Flamingo the state
dict of OpenFlamingo. Of other checkpoints the weights are written under their names, without the
prefixes of trainers (model., module., _orig_mod., _fsdp_wrapped_module.).
)",
    .options =
        {
            {"--max-shard-size", "SIZE",
             "split a folder's weights into files of at most this size (5GB)"},
            {"--dtype", "fp32|bf16|fp16|fp64",
             "the type of all floating-point tensors; else as they are"},
            {"--ema", "", "the averages of the weights instead of the weights"},
            {"--trainable-only", "",
             "what OpenFlamingo keeps: trained parameters and embeddings, its names"},
            {"--merge-lora", "", "add adapters to their weights (the default)"},
            {"--no-merge-lora", "", "only the adapters, as a PEFT folder"},
            {"--raw", "", "every tensor, optimizer state included, under its flat name"},
            {"--hub-layout", "",
             "a folder for the Hugging Face hub: needs config.json; prints the command"},
            {"--license", "ID",
             "the licence that the model card states, such as apache-2.0 or other"},
            {"--no-card", "", "no model card: a folder has one as README.md, else"},
            {"--model", "FILE.yaml",
             "the model, where the checkpoint does not say (as in floe generate)"},
            {"--base", "FOLDER",
             "a Hugging Face folder whose config.json and tokenizer go along, where the model is "
             "not known"},
            {"--strip-prefix", "PREFIX", "another prefix to take off names; may be repeated",
             kRepeats},
            {"--force", "", "replace OUT"},
            {"key=value", "",
             "changes the model's configuration (also ++key=value, ~key): where the files of a run "
             "have moved, model.lm=PATH says where they are"},
        },
    .closing = R"(  floe export runs/demo out --hub-layout --dtype bf16 --license apache-2.0
  floe export runs/demo/checkpoints/step_1000 flamingo.pt --trainable-only
  floe export lightning.ckpt all.safetensors --raw
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_export,
};

}  // namespace floe::cli
