#include "floe/train/setup/run_setup.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/checkpoint/store_exchange.h"
#include "floe/config/input_paths.h"
#include "floe/core/log.h"
#include "floe/data/loader/prepared_batches.h"
#include "floe/data/shards/shard_list.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/language_model.h"
#include "floe/models/weights/assembled_source.h"
#include "floe/models/weights/file_layouts.h"
#include "floe/packing/packing.h"
#include "floe/shard/plan/plan.h"
#include "floe/train/reporting/metric_names.h"

namespace floe::train {

// ---- the files and folders that a run reads ----

namespace {

struct Input {
  enum class Kind { path, shards, batches };

  std::string key;  // "model.lm"
  std::string* text;
  Kind kind = Kind::path;
};

std::vector<Input> model_inputs(models::ModelConfig& model, const std::string& block) {
  std::vector<Input> inputs{{block + "lm", &model.lm},
                            {block + "vision", &model.vision},
                            {block + "weights", &model.weights},
                            {block + "tokenizer", &model.tokenizer}};
  if (model.lora) inputs.push_back({block + "lora.weights", &model.lora->weights});
  return inputs;
}

std::vector<Input> inputs_of(RunConfig& config) {
  using enum Input::Kind;
  std::vector<Input> inputs = model_inputs(config.model, "model.");
  DataConfig& data = config.data;
  for (const data::DataSource* source : data::sources_of(data))
    inputs.push_back({source->files_key(), &source->files(data), shards});
  if (data.batches) inputs.push_back({"data.batches", &*data.batches, batches});
  ValidationConfig& validation = config.train.validation;
  for (auto& [source, text] : validation.shards.by_source) {
    const std::string key = "train.validation.shards";
    inputs.push_back({source.empty() ? key : key + "." + source, &text, shards});
  }
  if (validation.batches)
    inputs.push_back({"train.validation.batches", &*validation.batches, batches});
  for (ValidationTask& task : validation.tasks)
    inputs.push_back({"train.validation.tasks", &task.file});
  if (config.run.resume != "auto" && config.run.resume != "never")
    inputs.push_back({"run.resume", &config.run.resume});
  std::erase_if(inputs, [](const Input& input) { return input.text->empty(); });
  return inputs;
}

std::string file_of(const std::string& key, const config::Value& values) {
  const config::Value* value = values.at(key);
  return value ? config::file_of(value->origin) : "";
}

void resolve(const Input& input, const std::string& file) {
  switch (input.kind) {
    case Input::Kind::path: *input.text = config::find_input(*input.text, file); break;
    case Input::Kind::shards: try { *input.text = data::resolve_shards(*input.text, file);
      } catch (const ConfigError& error) {
        throw ConfigError(str(input.key, ": ", error.what()));
      }
      break;
    case Input::Kind::batches:
      *input.text = config::find_input(*input.text, file, data::has_prepared_batches);
      break;
  }
}

}  // namespace

void resolve_inputs(RunConfig& config, const config::Value& values) {
  for (const Input& input : inputs_of(config)) resolve(input, file_of(input.key, values));
  if (AutoStrategyConfig* choice =
          config.strategy.automatic ? &*config.strategy.automatic : nullptr;
      choice && choice->machine)  // a name, unless there is such a file
    choice->machine =
        config::find_input(*choice->machine, file_of("strategy.auto.machine", values));
  // RUN/config.yaml means the run that it lies in, wherever that has moved.
  const std::string file = file_of("run.dir", values);
  if (std::filesystem::path(file).filename() == "config.yaml" &&
      file_of("run.name", values) == file && !checkpoint::run_at(file).empty()) {
    const std::filesystem::path place = std::filesystem::absolute(file).lexically_normal();
    config.run.dir = place.parent_path().parent_path().string();
    config.run.name = place.parent_path().filename().string();
  }
  config.run.dir = std::filesystem::absolute(config.run.dir).lexically_normal().string();
}

void require_inputs(const config::Loaded<RunConfig>& loaded, int num_ranks, int own_rank) {
  RunConfig config = loaded.config;
  for (const Input& input : inputs_of(config)) {
    // Where a run began is not asked for again once it has checkpoints of its own.
    if (input.key == "run.resume" &&
        !checkpoint::list_checkpoints(checkpoint::checkpoints_folder(config.run.folder())).empty())
      continue;
    std::optional<std::string> missing;
    if (input.kind == Input::Kind::shards)
      missing = data::unfound_part(*input.text);
    else if (!input.text->starts_with('/'))
      missing = *input.text;
    if (missing && missing->starts_with('@')) missing->erase(0, 1);
    if (missing)
      throw ConfigError(str(input.key, ": there is no '", *missing, "', ",
                            config::not_found(*missing, file_of(input.key, loaded.values)),
                            "; mend the path"));
    if (input.kind == Input::Kind::batches)
      data::require_file_per_rank(*input.text, input.key, num_ranks, own_rank);
  }
}

void resolve_model_paths(models::ModelConfig& model, const config::Layers& layers) {
  const config::Value tree = config::compose(layers).tree;
  const std::string block = tree.at("model") ? "model." : "";  // else the whole file is the block
  for (const Input& input : model_inputs(model, block)) {
    const std::string file = file_of(input.key, tree);
    resolve(input, file);
    require<ConfigError>(input.text->empty() || input.text->starts_with('/'), input.key,
                         ": there is no '", *input.text, "', ",
                         config::not_found(*input.text, file), "; mend the path");
  }
}

// ---- checkpoints ----

namespace {

using checkpoint::FileTensor;
using SourcePtr = std::shared_ptr<const TensorSource>;

// Where the elements of a parameter from `first` on lie in a file.
struct Part {
  std::int64_t first = 0;
  models::WeightPiece piece;
};

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

// `shapes`: of the model's parameters. Throws CheckpointError when a tensor has another shape.
std::map<std::string, std::vector<Part>> parts_in(const SourcePtr& file,
                                                  const std::vector<FileTensor>& tensors,
                                                  const Shapes& shapes) {
  std::map<std::string, std::vector<Part>> parts;
  for (const FileTensor& tensor : tensors) {
    const TensorInfo* info = file->find(tensor.name);
    if (!info) continue;
    const auto own = shapes.find(tensor.name);
    if (own != shapes.end() && own->second == info->shape && info->shape != tensor.shape) continue;
    require<CheckpointError>(info->shape == tensor.shape, "'", tensor.name, "' has shape [",
                             join(info->shape), "], the model's has [", join(tensor.shape), "]");
    std::int64_t at = 0;
    for (const checkpoint::FileRun& run : tensor.runs) {
      models::WeightPiece piece{.source = file, .tensor = info, .first = at, .count = run.count};
      parts[run.parameter].push_back({run.first, std::move(piece)});
      at += run.count;
    }
  }
  for (auto& [name, pieces] : parts)
    std::sort(pieces.begin(), pieces.end(),
              [](const Part& a, const Part& b) { return a.first < b.first; });
  return parts;
}

// A file under OpenFlamingo's names, or already under the model's, as a source under the model's.
SourcePtr to_model_names(models::LanguageModel& model, const std::vector<FileTensor>& tensors,
                         const SourcePtr& file) {
  auto source = std::make_shared<models::AssembledSource>(0);
  Shapes shapes;
  for (const auto& parameter : model.module().named_parameters())
    shapes[parameter.key()] = parameter.value().sizes().vec();
  auto parts = parts_in(file, tensors, shapes);
  for (const auto& parameter : model.module().named_parameters()) {
    const std::string& name = parameter.key();
    const std::vector<std::int64_t>& shape = shapes.at(name);
    if (const TensorInfo* own = file->find(name); own && own->shape == shape)
      parts[name] = {{0, {.source = file, .tensor = own, .count = own->numel()}}};
    const auto found = parts.find(name);
    if (found == parts.end()) continue;
    std::vector<models::WeightPiece> pieces;
    std::int64_t covered = 0;
    for (const Part& part : found->second) {
      if (part.first != covered) break;
      covered += part.piece.count;
      pieces.push_back(part.piece);
    }
    // Rows that are shared out over two parameters may be there for one of them only.
    if (covered != parameter.value().numel() || pieces.empty()) continue;
    const DType dtype = pieces.front().tensor->dtype;
    source->add(name, shape, dtype, std::move(pieces));
  }
  return source;
}

// How the model's parameters are called in the checkpoints of OpenFlamingo, and which ones it
// keeps. The model must live as long.
checkpoint::ForeignNames foreign_names(models::LanguageModel& model) {
  const auto all = [](const nn::NamedParameter&) { return true; };
  const auto none = [](const nn::NamedParameter&) { return false; };
  checkpoint::ForeignNames names;
  for (const models::SavedTensor& saved : models::trained_part_layout(model, all)) {
    FileTensor tensor{saved.name, saved.shape, {}, saved.copies};
    for (const models::SavedRun& run : saved.runs)
      tensor.runs.push_back({run.parameter, run.first, run.count});
    names.tensors.push_back(std::move(tensor));
  }
  // OpenFlamingo keeps embeddings for their trained rows. A language model alone has none apart,
  // and its files have the table in their own precision.
  if (model.media_token() >= 0)
    for (const models::SavedTensor& saved : models::trained_part_layout(model, none))
      for (const models::SavedRun& run : saved.runs) names.always.insert(run.parameter);
  names.to_model = [&model, tensors = names.tensors](const SourcePtr& file) {
    return to_model_names(model, tensors, file);
  };
  return names;
}

// Collective: what the files of frozen weights hold. Rank 0 alone reads them; on a shared file
// system the others would only be in its way.
std::string digest_of(const std::string& path, comm::World& world) {
  checkpoint::StoreExchange ranks(world, "frozen", world.count("frozen"));
  return ranks.broadcast(world.rank() == 0 ? checkpoint::weights_digest(*open_tensors(path)) : "",
                         str("the digest of '", path, "'"));
}

// Frozen parameters that checkpoints hold although they do not train.
void log_kept(const std::set<std::string>& kept, const shard::ShardPlan& plan) {
  std::int64_t count = 0, numel = 0;
  std::string first;
  for (const auto& parameter : plan.parameters) {
    if (parameter.trainable || !kept.contains(parameter.name)) continue;
    if (count++ == 0) first = parameter.name;
    numel += parameter.numel;
  }
  if (count > 0)
    log::info(
        "checkpoints also hold what is frozen but not in the files of model.lm and "
        "model.vision: ",
        count, count == 1 ? " parameter" : " parameters", " with ", numel, " elements, such as ",
        first);
}

}  // namespace

checkpoint::CheckpointerOptions checkpointer_options(const RunConfig& config,
                                                     const models::BuiltModel& built,
                                                     shard::Engine& engine, const Phases& phases,
                                                     optim::Ema* ema) {
  checkpoint::CheckpointerOptions options;
  options.config = config.checkpoint;
  options.run_folder = config.run.folder();
  options.engine = &engine;
  for (optim::Optimizer* optimizer : phases.optimizers())
    options.optimizers.push_back(
        {phases.several() ? phases.schedule().name(optimizer->set()) : "", optimizer});
  options.ema = ema;
  options.foreign = foreign_names(*built.model);
  for (const std::string& path : models::base_files(config.model))
    options.bases.push_back({path, digest_of(path, engine.world())});
  options.nothing_initialised = config.model.skip_init;
  if (!config.model.skip_init)
    for (const auto& parameter : engine.plan().parameters)
      if (!built.of_base.contains(parameter.name)) options.kept.insert(parameter.name);
  if (engine.world().rank() == 0) {
    if (config.checkpoint.content == checkpoint::Content::trainable)
      log_kept(options.kept, engine.plan());
    if (const std::string ranked = ranked_saves(config); !ranked.empty()) log::info(ranked);
  }
  return options;
}

// ---- model, data and length ----

models::BuiltModel build_run_model(const config::Loaded<RunConfig>& loaded,
                                   const comm::World& world) {
  require_inputs(loaded, world.size(), world.rank());
  models::BuiltModel built = models::build_model(loaded.config.model, loaded.config.run.seed);
  // The samples of every source have labels that the token before predicts.
  for (const data::DataSource* source : data::sources_of(loaded.config.data))
    require<ConfigError>(
        loaded.config.data.batches || built.model->info().labels == models::LabelRule::next_token,
        "data.", source->id(), " is for models that continue text, and a '",
        built.model->info().family,
        "' learns masked tokens; prepare batches with their labels and name them with "
        "data.batches");
  return built;
}

void check_weights(const RunConfig& config, const comm::World& world) {
  const std::string& path = config.model.weights;
  const std::string manifest = checkpoint::manifest_path(path);
  std::error_code ignored;
  if (path.empty() || config.model.skip_init || !std::filesystem::exists(manifest, ignored)) return;
  const checkpoint::Manifest about = checkpoint::read_manifest(manifest);
  try {
    checkpoint::verify(path, about, world.rank(), world.size());
  } catch (const CheckpointError& error) {
    throw CheckpointError(str("model.weights: ", error.what(), "; name another checkpoint"));
  }
}

data::LoaderContext context_of_model(const models::BuiltModel& built) {
  data::LoaderContext context;
  context.tokenizer = built.tokenizer.get();
  if (built.tokens) context.tokens = *built.tokens;
  context.transform = built.model->picture_options();
  context.positions = built.model->info().positions().value_or(data::kNoLimit);
  return context;
}

data::LoaderContext loader_context(const RunConfig& config, const models::BuiltModel& built,
                                   const comm::World& world) {
  data::LoaderContext context = context_of_model(built);
  context.rank = world.rank();
  context.world = world.size();
  context.seed = config.run.seed;
  if (world.device().is_cuda()) context.allocate = packing::pinned_images();
  return context;
}

std::vector<double> loss_weights(const DataConfig& config) {
  std::vector<double> weights;
  for (const auto& source : data::data_sources()) weights.push_back(source->weight(config));
  return weights;
}

std::int64_t count_steps(const RunConfig& config, const PhaseSchedule& schedule,
                         std::int64_t steps_done, const data::Loader& loader) {
  auto most = schedule.most_steps();
  // Phases that begin anew, in a run that has gone further without them, have all their
  // steps to come.
  if (most) *most += steps_done - schedule.updates();
  if (schedule.size() == 1 && most) return *most;
  if (config.train.steps) return *config.train.steps;
  if (!config.train.epochs) return *most;
  const auto per_epoch = loader.steps_per_epoch();
  require<ConfigError>(per_epoch.has_value(),
                       "train.epochs is set, but the data has no end; set num_samples of every "
                       "source, or train.steps instead");
  // By what is left of the data: the ranks, or the steps that were skipped, may have
  // been others before.
  const std::int64_t batches = std::max<std::int64_t>(
      0, (*config.train.epochs - loader.epoch()) * *per_epoch - loader.index());
  const std::int64_t accumulation = config.train.gradient_accumulation;
  const std::int64_t steps = steps_done + (batches + accumulation - 1) / accumulation;
  require<ConfigError>(!most || steps <= *most, "train.epochs gives ", steps,
                       " steps, but the phases end after ", most.value_or(0),
                       "; lower train.epochs, leave steps out of the last phase, or set "
                       "train.cycle_phases");
  return steps;
}

std::unique_ptr<c10::StreamGuard> graph_stream(const RunConfig& config, const comm::World& world) {
  if (!config.strategy.cuda_graphs) return nullptr;
  StepGraphs::require_device(world);
  return computing_stream(world.device());
}

StepGraphs::Options graph_options(const RunConfig& config) {
  StepGraphs::Options options;
  options.drops_out = config.model.dropout != models::ModelConfig::Dropout::none ||
                      (config.model.lora && config.model.lora->dropout > 0);
  return options;
}

double count_bad(const data::Loader& loader) {
  std::int64_t bad = 0;
  for (const auto& [source, counts] : loader.counts()) bad += counts.num_damaged();
  return static_cast<double>(bad);
}

}  // namespace floe::train
