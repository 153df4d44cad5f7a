#include "floe/checkpoint/load/load.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/nn/load.h"
#include "floe/shard/group/fill.h"

namespace floe::checkpoint {
namespace {

constexpr std::size_t kMostNamed = 8;  // defects in one sentence

using shard::FlatGroup;
using shard::PlannedParameter;

const TensorInfo* find(const TensorSource& source, const PlannedParameter& parameter) {
  return nn::find_any(source, parameter.name, parameter.other_names);
}

// Collects what is missing or has another shape.
class Defects {
 public:
  void check(const TensorSource& source, const PlannedParameter& parameter, const char* what) {
    const TensorInfo* info = find(source, parameter);
    if (!info)
      found_.push_back(str(what, "'", parameter.name, "' is missing"));
    else if (info->shape != parameter.shape)
      found_.push_back(str(what, "'", parameter.name, "' has shape [", join(info->shape),
                           "], the model's has [", join(parameter.shape), "]"));
  }
  void throw_if_any(const std::string& path) {
    if (found_.empty()) return;
    const std::size_t all = found_.size();
    if (all > kMostNamed) {
      found_.resize(kMostNamed);
      found_.push_back(str("and ", all - kMostNamed, " more"));
    }
    throw CheckpointError(str("'", path, "' does not fit the model: ", join(found_, "; ")));
  }

 private:
  std::vector<std::string> found_;
};

void read_pieces(const FlatGroup& group, const TensorSource& source, const at::Tensor& slice,
                 shard::SharedReads& reads) {
  for (const shard::Piece& piece : group.pieces())
    if (const TensorInfo* info = find(source, group.parameter(piece.index)))
      reads.read(group, source, *info, piece.first,
                 slice.narrow(0, piece.slice_offset, piece.numel));
}

// All parameters of a group share one count.
void read_updates(const SavedState& saved, const OptimizerState& state, const FlatGroup& group,
                  const at::Tensor& updates) {
  const auto counts = state.find("step");
  std::optional<double> count;
  if (counts != state.end())
    for (std::size_t i = 0; i < group.plan().parameters.size(); ++i) {
      const TensorInfo* info = find(*counts->second, group.parameter(i));
      if (!info || info->numel() != 1) continue;
      const double found = nn::read_tensor(*counts->second, *info).item().toDouble();
      require<CheckpointError>(!count || *count == found, "'", saved.path, "': the parameters of '",
                               group.name(), "' were updated ", *count, " and ", found,
                               " times; an optimizer of floe counts per group, so shard with units "
                               "that keep them apart");
      count = found;
    }
  // Trained rows have no count of their own in a file with whole tables: every count is the same.
  if (!count && counts != state.end() && !counts->second->names().empty()) {
    const TensorInfo& any = counts->second->get(counts->second->names().front());
    if (any.numel() == 1) count = nn::read_tensor(*counts->second, any).item().toDouble();
  }
  updates.fill_(count.value_or(static_cast<double>(saved.step)));
}

// Whether the checkpoint says of a set that it had no state.
bool known_without_state(const SavedState& saved, const std::string& set) {
  return saved.manifest &&
         std::any_of(saved.manifest->sets.begin(), saved.manifest->sets.end(),
                     [&](const SavedSet& known) { return known.name == set && !known.has_state; });
}

Loadable::State state_in(const SavedState& saved, const SetOptimizer& set) {
  if (saved.optimizers.contains(set.name)) return Loadable::State::saved;
  const bool none = set.optimizer->state_names().empty() || known_without_state(saved, set.name);
  return none ? Loadable::State::none : Loadable::State::missing;
}

// Not in the checkpoint because it was frozen and of the base then, which this run has read as
// well.
bool is_of_base(const SavedState& saved, const RunState& run, const PlannedParameter& parameter) {
  if (!saved.manifest || !saved.manifest->kept || saved.manifest->bases.empty()) return false;
  return saved.manifest->content == Content::trainable &&
         !saved.manifest->kept->contains(parameter.name) && !run.kept.contains(parameter.name);
}

bool was_frozen(const SavedState& saved, const PlannedParameter& parameter) {
  return saved.manifest && saved.manifest->trained &&
         !saved.manifest->trained->contains(parameter.name);
}

// Returns the groups that start anew.
std::set<std::size_t> check_optimizer(const SavedState& saved, const RunState& run,
                                      const SetOptimizer& set, Defects& defects) {
  std::set<std::size_t> new_groups;
  const OptimizerState& state = saved.optimizers.at(set.name);
  const std::string whose = set.name.empty() ? "" : str(" in set '", set.name, "'");
  for (const std::string& key : set.optimizer->state_names()) {
    const auto source = state.find(key);
    require<CheckpointError>(source != state.end(), "'", saved.path, "' has no '", key,
                             "' of the optimizer", whose, ", which ", set.optimizer->kind(),
                             " needs; it was saved with another train.optimizer.type");
    const auto groups = run.engine->trainable_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g]->plan().trains_in(set.optimizer->set())) continue;
      for (std::size_t i = 0; i < groups[g]->plan().parameters.size(); ++i) {
        const PlannedParameter& parameter = groups[g]->parameter(i);
        if (was_frozen(saved, parameter) && !find(*source->second, parameter))
          new_groups.insert(g);
        else
          defects.check(*source->second, parameter, str(key, whose, " of ").c_str());
      }
    }
  }
  return new_groups;
}

void activate_saved_set(const SavedState& saved, const RunState& run) {
  if (!saved.manifest) return;
  for (const SavedSet& known : saved.manifest->sets)
    for (const SetOptimizer& set : run.optimizers)
      if (known.active && set.name == known.name) run.engine->activate(set.optimizer->set());
}

// As before its first step.
void clear_group(optim::Optimizer& optimizer, std::size_t group) {
  for (const optim::StateSlice& slice : optimizer.state_slices(group)) slice.values.zero_();
  if (at::Tensor updates = optimizer.updates(group); updates.defined()) updates.zero_();
}

void load_optimizer(const SavedState& saved, const OptimizerState& state, const RunState& run,
                    optim::Optimizer& optimizer, const std::set<std::size_t>& new_groups,
                    shard::SharedReads& reads) {
  const auto groups = run.engine->trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (new_groups.contains(g)) {
      clear_group(optimizer, g);
      if (run.engine->world().rank() == 0)
        log::info("the optimizer starts anew for '", groups[g]->name(), "', of which '", saved.path,
                  "' has not trained everything");
      continue;
    }
    for (const optim::StateSlice& slice : optimizer.open_state(g))
      read_pieces(*groups[g], *state.at(slice.name), slice.values, reads);
    if (const at::Tensor updates = optimizer.updates(g); updates.defined())
      reads.attempt([&] { read_updates(saved, state, *groups[g], updates); });
  }
}

void clear_optimizer(const RunState& run, optim::Optimizer& optimizer) {
  for (std::size_t g = 0; g < run.engine->trainable_groups().size(); ++g) clear_group(optimizer, g);
}

}  // namespace

std::vector<std::string> Loadable::anew(const RunState& run) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    if (optimizers[i] == State::missing) names.push_back(run.optimizers[i].name);
  return names;
}

Loadable check_fits(const SavedState& saved, const RunState& run) {
  Defects defects;
  Loadable loadable;
  loadable.has_ema = run.ema && saved.ema;
  for (const PlannedParameter& parameter : run.engine->plan().parameters) {
    const bool found = find(*saved.weights, parameter) != nullptr;
    if (found || (parameter.trainable && !is_of_base(saved, run, parameter)) ||
        (saved.manifest && saved.manifest->kept && saved.manifest->kept->contains(parameter.name)))
      defects.check(*saved.weights, parameter, "");
    const bool averaged =
        loadable.has_ema && (find(*saved.ema, parameter) || !was_frozen(saved, parameter));
    if (parameter.trainable && averaged) defects.check(*saved.ema, parameter, "the average of ");
  }
  for (const SetOptimizer& set : run.optimizers) {
    loadable.optimizers.push_back(state_in(saved, set));
    loadable.new_groups.push_back(loadable.optimizers.back() == Loadable::State::saved
                                      ? check_optimizer(saved, run, set, defects)
                                      : std::set<std::size_t>());
  }
  defects.throw_if_any(saved.path);
  return loadable;
}

void load(const SavedState& saved, const RunState& run, const Loadable& what) {
  const at::AutoGradMode grad_off(false);
  activate_saved_set(saved, run);
  shard::SharedReads reads;
  for (const auto& group : run.engine->groups()) {
    shard::read_group(*group, *saved.weights, reads);
    group->values_changed();
  }
  // The average of what was frozen is its value.
  if (run.ema) run.ema->restart();
  if (what.has_ema)
    for (std::size_t g = 0; g < run.engine->trainable_groups().size(); ++g)
      read_pieces(*run.engine->trainable_groups()[g], *saved.ema, run.ema->slice(g), reads);
  for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
    const SetOptimizer& set = run.optimizers[i];
    if (what.optimizers[i] == Loadable::State::saved)
      load_optimizer(saved, saved.optimizers.at(set.name), run, *set.optimizer, what.new_groups[i],
                     reads);
    else
      clear_optimizer(run, *set.optimizer);
  }
  reads.finish();
}

}  // namespace floe::checkpoint
