#include "floe/checkpoint/load.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/nn/load.h"

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

void read_pieces(const FlatGroup& group, const TensorSource& source, const at::Tensor& slice) {
  for (const shard::Piece& piece : group.pieces())
    if (const TensorInfo* info = find(source, group.parameter(piece.index)))
      nn::read_elements(source, *info, piece.first,
                        slice.narrow(0, piece.shard_offset, piece.numel));
}

// All parameters of a group share one count.
void read_updates(const SavedState& saved, const FlatGroup& group, at::Tensor updates) {
  const auto counts = saved.optimizer.find("step");
  std::optional<double> count;
  if (counts != saved.optimizer.end())
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
  if (!count && counts != saved.optimizer.end() && !counts->second->names().empty()) {
    const TensorInfo& any = counts->second->get(counts->second->names().front());
    if (any.numel() == 1) count = nn::read_tensor(*counts->second, any).item().toDouble();
  }
  updates.fill_(count.value_or(static_cast<double>(saved.step)));
}

}  // namespace

Loadable check_fits(const SavedState& saved, const RunState& run) {
  Defects defects;
  for (const PlannedParameter& parameter : run.engine->plan().parameters)
    if (parameter.trainable || find(*saved.weights, parameter))
      defects.check(*saved.weights, parameter, "");
  Loadable loadable;
  loadable.has_ema = run.ema && saved.ema;
  loadable.has_optimizer = run.optimizer && !saved.optimizer.empty();
  for (std::size_t g = 0; g < run.engine->trainable_groups().size(); ++g) {
    const FlatGroup& group = *run.engine->trainable_groups()[g];
    for (std::size_t i = 0; i < group.plan().parameters.size(); ++i) {
      if (loadable.has_ema) defects.check(*saved.ema, group.parameter(i), "the average of ");
      if (!loadable.has_optimizer) continue;
      for (const optim::StateSlice& slice : run.optimizer->state_slices(g)) {
        const auto source = saved.optimizer.find(slice.name);
        require<CheckpointError>(source != saved.optimizer.end(), "'", saved.path, "' has no '",
                                 slice.name, "' of the optimizer, which ", run.optimizer->kind(),
                                 " needs; it was saved with another train.optimizer.type");
        defects.check(*source->second, group.parameter(i), str(slice.name, " of ").c_str());
      }
    }
  }
  defects.throw_if_any(saved.path);
  return loadable;
}

void load(const SavedState& saved, const RunState& run, const Loadable& what) {
  const at::AutoGradMode grad_off(false);
  for (const auto& group : run.engine->groups())
    read_pieces(*group, *saved.weights, group->shard());
  const auto groups = run.engine->trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (what.has_ema) read_pieces(*groups[g], *saved.ema, run.ema->slice(g));
    if (!what.has_optimizer) continue;
    for (const optim::StateSlice& slice : run.optimizer->state_slices(g))
      read_pieces(*groups[g], *saved.optimizer.at(slice.name), slice.values);
    if (const at::Tensor updates = run.optimizer->updates(g); updates.defined())
      read_updates(saved, *groups[g], updates);
  }
  if (run.ema && !what.has_ema) run.ema->restart();
}

}  // namespace floe::checkpoint
