#include "floe/checkpoint/held_parameters.h"

#include <algorithm>
#include <span>

#include "floe/comm/world.h"
#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/nn/load.h"
#include "floe/shard/plan/plan.h"

namespace floe::checkpoint {
namespace {

// Elements of a tensor that a digest takes at its beginning, in its middle and at its end.
constexpr std::int64_t kSampled = 16;

// What other parameters stand for in the parameter that a file's tensor is called after.
std::vector<TableRows> rows_in_tables(const std::vector<FileTensor>& tensors) {
  std::vector<TableRows> rows;
  for (const FileTensor& tensor : tensors) {
    const bool is_parameter =
        std::any_of(tensor.runs.begin(), tensor.runs.end(),
                    [&](const FileRun& run) { return run.parameter == tensor.name; });
    std::int64_t at = 0;
    for (const FileRun& run : tensor.runs) {
      if (is_parameter && run.parameter != tensor.name)
        rows.push_back({tensor.name, run.parameter, at, run.first, run.count});
      at += run.count;
    }
  }
  return rows;
}

// "a, b and 3 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  if (names.size() <= kMost) return join(names, ", ");
  return str(join(std::vector(names.begin(), names.begin() + kMost), ", "), " and ",
             names.size() - kMost, " more");
}

bool same_bases(const std::vector<FrozenBase>& a, const std::vector<FrozenBase>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const FrozenBase& x, const FrozenBase& y) { return x.digest == y.digest; });
}

}  // namespace

std::vector<FileTensor> own_file_tensors(const shard::ShardPlan& plan) {
  std::vector<FileTensor> tensors;
  for (const auto& parameter : plan.parameters)
    tensors.push_back(
        {parameter.name, parameter.shape, {{parameter.name, 0, parameter.numel}}, {}});
  return tensors;
}

HeldParameters::HeldParameters(RunState& run, const CheckpointerOptions& options)
    : run_(run), options_(options) {
  run_.rows = rows_in_tables(options_.foreign.tensors);
  for (const auto& parameter : run_.engine->plan().parameters)
    if (parameter.trainable) trained_.insert(parameter.name);
  keep(options_.foreign.always);
  keep(options_.kept);
}

Holdings HeldParameters::holdings() const {
  Holdings held{options_.config.content, options_.bases, run_.kept, trained_, frozen_};
  held.kept->insert(trained_.begin(), trained_.end());
  return held;
}

std::vector<FileTensor> HeldParameters::file_tensors() const {
  std::vector<FileTensor> tensors;
  for (const FileTensor& tensor : options_.foreign.tensors)
    if (run_.content == Content::full || holds_some_of(tensor)) tensors.push_back(tensor);
  return tensors;
}

void HeldParameters::keep(const std::set<std::string>& names) {
  run_.kept.insert(names.begin(), names.end());
  // A file's tensor is written whole, with everything that it is made of.
  for (const FileTensor& tensor : options_.foreign.tensors)
    if (holds_some_of(tensor))
      for (const FileRun& part : tensor.runs)
        if (!trained_.contains(part.parameter)) run_.kept.insert(part.parameter);
  check_savable(run_);
}

bool HeldParameters::holds_some_of(const FileTensor& tensor) const {
  return std::any_of(tensor.runs.begin(), tensor.runs.end(), [&](const FileRun& part) {
    return run_.kept.contains(part.parameter) || trained_.contains(part.parameter);
  });
}

void HeldParameters::take_over(const SavedState& saved) {
  // All weights of a full checkpoint of another base are not in this run's files.
  const bool says =
      saved.manifest && saved.manifest->kept && same_bases(saved.manifest->bases, options_.bases);
  std::set<std::string> held;
  std::vector<std::string> more, missing, lost;
  for (const auto& parameter : run_.engine->plan().parameters) {
    if (!nn::find_any(*saved.weights, parameter.name, parameter.other_names)) {
      missing.push_back(parameter.name);
      if (options_.kept.contains(parameter.name)) lost.push_back(parameter.name);
      continue;
    }
    if (says && !saved.manifest->kept->contains(parameter.name)) continue;
    held.insert(parameter.name);
    if (!says && !has(run_, parameter)) more.push_back(parameter.name);
  }
  const std::size_t all = run_.engine->plan().parameters.size();
  require<ConfigError>(!options_.nothing_initialised || missing.empty(),
                       "model.skip_init leaves every parameter without a value, but '", saved.path,
                       "' holds only ", all - missing.size(), " of ", all,
                       "; remove model.skip_init, or resume from a checkpoint with content: full");
  keep(held);
  if (saved.manifest)
    for (const auto& names :
         {saved.manifest->trained.value_or(std::set<std::string>()), saved.manifest->frozen})
      for (const std::string& name : names)
        if (!trained_.contains(name)) frozen_.insert(name);
  if (run_.engine->world().rank() != 0) return;
  log_what_ends(saved);
  if (!lost.empty())
    log::warn("'", saved.path, "' does not hold ", some_of(lost),
              ", which are not in the frozen files either: they are as model.weights or the seed "
              "gives them now");
  if (!more.empty())
    log::info(
        "'", saved.path, "' does not say which of its parameters are in this run's frozen ",
        "files, so this run's checkpoints hold all of them; they do not train: ", some_of(more));
}

void HeldParameters::log_what_ends(const SavedState& saved) const {
  // Of those that an earlier start froze, it was said then.
  std::vector<std::string> frozen_now;
  if (saved.manifest)
    for (const std::string& name : frozen_)
      if (!saved.manifest->frozen.contains(name)) frozen_now.push_back(name);
  if (!frozen_now.empty())
    log::warn(some_of(frozen_now),
              " trained until now and are frozen from here on: their weights stay in the ",
              "checkpoints, in strategy.mixed_precision.param, but their optimizer state, averages "
              "and fp32 masters end with '",
              saved.path, "', which checkpoint.keep may remove");
  for (const SetOptimizer& set : run_.optimizers) {
    const auto state = saved.optimizers.find(set.name);
    if (state == saved.optimizers.end()) continue;
    std::vector<std::string> unused;
    const auto& known = set.optimizer->state_names();
    for (const auto& [key, source] : state->second)
      if (key != "step" && std::find(known.begin(), known.end(), key) == known.end())
        unused.push_back(key);
    if (!unused.empty())
      log::warn("'", saved.path, "' has ", join(unused, ", "), " of another optimizer, which ",
                set.optimizer->kind(), " does not keep: they end here");
  }
}

std::string weights_digest(const TensorSource& weights) {
  Sha256 hash;
  const auto add = [&](const std::string& text) { hash.add(std::as_bytes(std::span(text))); };
  for (const std::string& name : weights.names()) {
    const TensorInfo& info = weights.get(name);
    add(str(name, "\n", name_of(info.dtype), "\n", join(info.shape), "\n"));
    const std::int64_t numel = info.numel(), count = std::min(kSampled, numel);
    for (const std::int64_t first : {std::int64_t{0}, (numel - count) / 2, numel - count}) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(info.dtype)));
      weights.read(info, first, count, bytes);
      hash.add(bytes);
    }
  }
  return hash.finish_hex();
}

}  // namespace floe::checkpoint
