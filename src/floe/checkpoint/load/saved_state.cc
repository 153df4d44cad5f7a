#include "floe/checkpoint/load/saved_state.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>

#include "floe/checkpoint/save/single_file.h"
#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/nn/load.h"
#include "floe/shard/plan/plan.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using SourcePtr = std::shared_ptr<const TensorSource>;

constexpr std::string_view kState = ".state.";
// In front of the name of a set.
constexpr std::array<std::string_view, 2> kSets{"optimizers.", "optimizer_state_dicts."};

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

using Groups = std::vector<optim::ParameterGroup>;

// Groups as if every parameter had the rate of all.
Groups without_rates(const Groups& groups, const shard::ShardPlan& plan) {
  Groups merged;
  for (const auto& group : groups) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const auto& other) {
      return other.weight_decay == group.weight_decay;
    });
    if (same == merged.end())
      merged.push_back(group);
    else
      same->names.insert(same->names.end(), group.names.begin(), group.names.end());
  }
  std::map<std::string, std::size_t> place;
  for (const auto& parameter : plan.parameters) place.emplace(parameter.name, place.size());
  for (auto& group : merged)
    std::sort(group.names.begin(), group.names.end(),
              [&](const auto& a, const auto& b) { return place.at(a) < place.at(b); });
  return merged;
}

// The names by group that the optimizer of a file without names would count: 0, 1, ... over its
// groups.
std::vector<std::vector<std::string>> names_by_group(const Groups& groups,
                                                     const ForeignNames& foreign) {
  std::vector<std::vector<std::string>> names;
  if (foreign.tensors.empty()) {
    for (const auto& group : groups) names.push_back(group.names);
  } else {
    for (const auto& group : numbered_tensors(foreign.tensors, groups)) {
      names.emplace_back();
      for (const FileTensor* tensor : group) names.back().push_back(tensor->name);
    }
  }
  std::erase_if(names, [](const auto& group) { return group.empty(); });
  return names;
}

// The weights of a file in the order of the model that was saved, in which torch's optimizers count
// their parameters. Empty for a directory, which keeps no order.
std::vector<std::string> names_in_order(const TensorSource& source, const WeightNaming& naming) {
  const auto* file = dynamic_cast<const TorchFile*>(&source);
  const pickle::Value* weights = file && file->root().has_entries() ? &file->root() : nullptr;
  const std::string_view prefix = naming.prefix();
  if (weights && !prefix.empty()) weights = weights->find(prefix.substr(0, prefix.size() - 1));
  std::vector<std::string> names;
  for (const auto& [key, value] :
       weights && weights->has_entries() ? weights->entries() : pickle::Entries())
    if (key.is(pickle::Kind::text)) names.push_back(naming.plain(key.text()));
  return names;
}

// Each group's names in that order, where it has all of them.
void put_in_order(std::vector<std::vector<std::string>>& by_group,
                  const std::vector<std::string>& order) {
  std::map<std::string, std::size_t> place;
  for (const std::string& name : order) place.emplace(name, place.size());
  for (auto& group : by_group)
    if (std::all_of(group.begin(), group.end(), [&](const auto& n) { return place.contains(n); }))
      std::sort(group.begin(), group.end(),
                [&](const auto& a, const auto& b) { return place.at(a) < place.at(b); });
}

// The state of a set's optimizer in a file: OpenFlamingo's, floe's or Lightning's; null where there
// is none.
const pickle::Value* optimizer_in(const pickle::Value& root, const std::string& set) {
  if (!set.empty()) {
    const pickle::Value* sets = root.find("optimizer_state_dicts");
    return sets && sets->has_entries() ? sets->find(set) : nullptr;
  }
  if (const pickle::Value* only = root.find("optimizer_state_dict")) return only;
  const pickle::Value* list = root.find("optimizer_states");
  const bool is_one = list && list->is(pickle::Kind::list) && list->items().size() == 1;
  return is_one ? &list->items().front() : nullptr;
}

// How many parameters the groups of a file's optimizer have, without empty ones; nothing where it
// does not say.
std::vector<std::size_t> group_sizes(const TensorSource& source, const std::string& set) {
  const auto* file = dynamic_cast<const TorchFile*>(&source);
  if (!file || !file->root().has_entries()) return {};
  const pickle::Value* state = optimizer_in(file->root(), set);
  const pickle::Value* groups =
      state && state->has_entries() ? state->find("param_groups") : nullptr;
  if (!groups || !groups->is(pickle::Kind::list)) return {};
  std::vector<std::size_t> sizes;
  for (const pickle::Value& group : groups->items()) {
    const pickle::Value* params = group.has_entries() ? group.find("params") : nullptr;
    if (!params || !params->is(pickle::Kind::list)) return {};
    if (!params->items().empty()) sizes.push_back(params->items().size());
  }
  return sizes;
}

// The names of a file's numbers. They count group by group, so that the groups must be the same:
// those of this run, or those that it would have without rates of their own.
std::vector<std::string> names_of_numbers(const TensorSource& source, const WeightNaming& naming,
                                          const std::string& path, const SetOptimizer& set,
                                          const ForeignNames& foreign) {
  const std::vector<std::string> order = names_in_order(source, naming);
  const Groups groups = set.optimizer->parameter_groups();
  const auto flat = [](const std::vector<std::vector<std::string>>& by_group) {
    std::vector<std::string> all;
    for (const auto& group : by_group) all.insert(all.end(), group.begin(), group.end());
    return all;
  };
  auto ours = names_by_group(groups, foreign);
  put_in_order(ours, order);
  const std::vector<std::size_t> theirs = group_sizes(source, set.name);
  const auto fits = [&](const std::vector<std::vector<std::string>>& by_group) {
    return std::equal(by_group.begin(), by_group.end(), theirs.begin(), theirs.end(),
                      [](const auto& group, std::size_t size) { return group.size() == size; });
  };
  if (theirs.empty() || fits(ours)) return flat(ours);
  auto plain = names_by_group(without_rates(groups, set.optimizer->engine().plan()), foreign);
  put_in_order(plain, order);
  std::vector<std::size_t> sizes;
  for (const auto& group : ours) sizes.push_back(group.size());
  require<CheckpointError>(
      fits(plain), "'", path, "': the optimizer's state is numbered over groups of ", join(theirs),
      " parameters, but those of this run have ", join(sizes),
      "; train with the train.trainable, optimizer.decay and optimizer.lr_patterns that it was "
      "saved with, or take its weights alone (model.weights)");
  return flat(plain);
}

// The files of a checkpoint of floe were checked, each by somebody (Note [Shares of a check]).
SourcePtr source_at(const std::string& path) {
  using Files = DcpDirectory::Files;
  if (!fs::is_directory(path)) return open_tensors(path);
  return std::make_shared<DcpDirectory>(
      path, fs::exists(manifest_path(path)) ? Files::known : Files::checked);
}

class Opening {
 public:
  Opening(const std::string& path, const RunState& run, const ForeignNames& foreign)
      : run_(run), foreign_(foreign), source_(source_at(path)), naming_(*source_) {
    state_.path = path;
    if (fs::exists(manifest_path(path))) state_.manifest = read_manifest(manifest_path(path));
    for (const std::string& name : source_->names()) names_.push_back(name);
  }

  SavedState open() {
    open_weights();
    for (const SetOptimizer& set : run_.optimizers) open_optimizer(set);
    for (const char* prefix : {"ema.", "ema_state_dict."})
      if (Renames below = names_below(*source_, prefix); !below.empty())
        state_.ema = std::make_shared<RenamedSource>(source_, below);
    if (state_.manifest) {
      state_.shared = state_.manifest->shared;
      state_.step = state_.manifest->step;
    } else {
      open_shared();
    }
    return std::move(state_);
  }

 private:
  // Whether the names in the file are another system's, to be translated.
  bool translated() const {
    if (!foreign_.to_model) return false;
    return !state_.manifest || state_.manifest->layout == Layout::trainable;
  }

  SourcePtr in_model_names(SourcePtr source) const {
    return translated() ? foreign_.to_model(std::move(source)) : source;
  }

  void open_weights() {
    // Of floe's own a name is a parameter's, whatever is in it.
    Renames below = state_.manifest ? names_below(*source_, naming_.prefix())
                                    : weight_names(*source_, naming_, state_.path);
    if (naming_.prefix().empty())
      std::erase_if(below, [](const auto& entry) { return entry.first.starts_with("optim"); });
    state_.weights = in_model_names(std::make_shared<RenamedSource>(source_, below));
  }

  // The part of a tensor's name after `….state.`, if it is of the set's optimizer; else empty.
  static std::string_view state_of(const std::string& set, std::string_view name) {
    if (!name.starts_with("optim")) return {};
    for (const std::string_view before : kSets) {
      if (!name.starts_with(before)) continue;
      name.remove_prefix(before.size());
      const bool is_of_set =
          !set.empty() && name.starts_with(set) && name.substr(set.size()).starts_with(kState);
      return is_of_set ? name.substr(set.size() + kState.size()) : std::string_view();
    }
    const std::size_t state = name.find(kState);
    if (!set.empty() || state == std::string_view::npos) return {};
    return name.substr(state + kState.size());
  }

  // The names that state without names counts: 0, 1, ... over the optimizer's groups. The file's
  // own, where it says them: this run may train something else.
  std::vector<std::string> counted_by(const SetOptimizer& set) const {
    if (state_.manifest)
      if (const auto said = state_.manifest->numbered.find(set.name);
          said != state_.manifest->numbered.end())
        return said->second;
    return names_of_numbers(*source_, naming_, state_.path, set, foreign_);
  }

  // Sorts ….state.NAME.KEY of a set by key.
  void open_optimizer(const SetOptimizer& set) {
    std::map<std::string, Renames> by_key;
    std::vector<std::string> numbered;
    for (const std::string& name : names_) {
      const std::string_view state = state_of(set.name, name);
      const std::size_t dot = state.rfind('.');
      if (dot == std::string_view::npos || dot == 0) continue;
      std::string parameter(state.substr(0, dot));
      if (is_number(parameter)) {
        if (numbered.empty()) numbered = counted_by(set);
        std::size_t number = 0;
        const auto read =
            std::from_chars(parameter.data(), parameter.data() + parameter.size(), number);
        require<CheckpointError>(read.ec == std::errc() && number < numbered.size(), "'",
                                 state_.path, "': the optimizer's state has the parameter number ",
                                 parameter, ", but this run trains ", numbered.size());
        parameter = numbered[number];
      } else if (!state_.manifest) {
        parameter = naming_.plain(parameter);
      }
      const auto [known, is_new] =
          by_key[std::string(state.substr(dot + 1))].emplace(parameter, name);
      require<CheckpointError>(is_new, "'", state_.path, "': '", known->second, "' and '", name,
                               "' are both the state of '", parameter,
                               "'; take its weights alone (model.weights)");
    }
    for (const auto& [key, names] : by_key) {
      SourcePtr source = std::make_shared<RenamedSource>(source_, names);
      // Scalars belong to a whole tensor of the file, whatever parameters it is made of.
      state_.optimizers[set.name][key] = key == "step" ? source : in_model_names(std::move(source));
    }
  }

  // How often an optimizer made a step.
  static std::int64_t count_updates(const OptimizerState& optimizer) {
    std::int64_t count = 0;
    if (const auto steps = optimizer.find("step"); steps != optimizer.end())
      for (const std::string& name : steps->second->names())
        if (const TensorInfo& info = steps->second->get(name); info.numel() == 1)
          count = std::max(count, nn::read_tensor(*steps->second, info).item().toLong());
    return count;
  }

  void open_shared() {
    state_.shared = nlohmann::json::object();
    if (const auto* directory = dynamic_cast<const DcpDirectory*>(source_.get())) {
      for (const char* key : {"epoch", "global_step", "step"})
        if (directory->has_object(key)) state_.shared[key] = to_json(directory->object(key));
      const std::string meta = state_.path + "/meta.pt";
      if (fs::exists(meta)) state_.shared.update(to_json(TorchFile(meta).root()));
    } else if (const auto* file = dynamic_cast<const TorchFile*>(source_.get())) {
      for (const auto& [key, value] :
           file->root().has_entries() ? file->root().entries() : pickle::Entries())
        if (key.is(pickle::Kind::text) && !value.has_entries())
          state_.shared[key.text()] = to_json(value);
    }
    for (const char* key : {"step", "global_step"})
      if (state_.shared.contains(key) && state_.shared.at(key).is_number_integer())
        state_.step = state_.shared.at(key);
    if (state_.step != 0) return;
    for (const auto& [set, optimizer] : state_.optimizers) state_.step += count_updates(optimizer);
  }

  const RunState& run_;
  const ForeignNames& foreign_;
  SourcePtr source_;
  WeightNaming naming_;
  std::vector<std::string> names_;
  SavedState state_;
};

}  // namespace

SavedState open_saved(const std::string& path, const RunState& run, const ForeignNames& foreign) {
  return Opening(path, run, foreign).open();
}

}  // namespace floe::checkpoint
