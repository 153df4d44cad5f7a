// How a plan is made of a model, a policy and options.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>
#include <unordered_map>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/nn/module.h"
#include "floe/shard/plan/mask.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

namespace {

bool is_pattern(const std::string& entry) {
  return entry.find_first_of(".*?[") != std::string::npos;
}

struct Place {
  std::string name;
  torch::nn::Module* module;
  torch::nn::Module* parent;
};

// Every module once, in registration order, the root first.
std::vector<Place> places_of(torch::nn::Module& root) {
  std::vector<Place> places;
  std::set<const torch::nn::Module*> seen;
  auto walk = [&](auto& self, torch::nn::Module& module, torch::nn::Module* parent,
                  const std::string& name) -> void {
    if (!seen.insert(&module).second) return;
    places.push_back({name, &module, parent});
    for (const auto& item : module.named_children())
      self(self, *item.value(), &module, name.empty() ? item.key() : name + "." + item.key());
  };
  walk(walk, root, nullptr, "");
  return places;
}

// Modules (never the root) that an entry of a policy names; none is an error with near names.
std::vector<const Place*> select(const std::vector<Place>& places, const std::string& entry,
                                 const char* key) {
  std::vector<const Place*> found;
  for (const Place& place : places)
    if (!place.name.empty() && names_module(entry, place.name, *place.module))
      found.push_back(&place);
  if (!found.empty()) return found;
  std::set<std::string> classes;
  std::vector<std::string> names;
  for (const Place& place : places) {
    if (place.name.empty()) continue;
    classes.insert(nn::class_name(*place.module));
    names.push_back(place.name);
  }
  const std::string near = is_pattern(entry)
                               ? did_you_mean_pattern(entry, names)
                               : did_you_mean(entry, {classes.begin(), classes.end()});
  throw ConfigError(str(key, ": '", entry, "' matches no module", near,
                        " (classes in this model: ", join(classes), ")"));
}

std::int64_t own_numel(torch::nn::Module& module) {
  std::int64_t numel = 0;
  for (const auto& parameter : module.parameters(/*recurse=*/false)) numel += parameter.numel();
  return numel;
}

// The weight of one linear layer, floe's or torch's, or of an attention's fused projection as
// torch.nn.MultiheadAttention names it.
bool is_matrix(const nn::NamedParameter& p) {
  if (p.tensor.dim() != 2 || p.tensor.numel() == 0 || p.owners.size() != 1) return false;
  const std::string local = p.name.substr(p.name.rfind('.') + 1);
  return local == "in_proj_weight" ||
         (local == "weight" && nn::class_name(*p.owners.front()) == "Linear");
}

// Whether its module multiplies with it and can do so in 8 bits.
bool multiplies(const nn::NamedParameter& p) {
  const auto* owner = dynamic_cast<const nn::Module*>(p.owners.front());
  const std::string local = p.name.substr(p.name.rfind('.') + 1);
  return is_matrix(p) && owner && owner->multiplies(local) &&
         p.tensor.size(0) % kernels::kProductAlignment == 0 &&
         p.tensor.size(1) % kernels::kProductAlignment == 0;
}

class Planner {
 public:
  Planner(torch::nn::Module& root, const Policy& policy, const ShardOptions& options,
          int world_size, const ShardPlan* before)
      : root_(root), policy_(policy), options_(options), before_(before), places_(places_of(root)) {
    plan_.world_size = world_size;
    plan_.prefetch = options.prefetch;
    plan_.passes_per_update = options.passes_per_update;
    plan_.accumulate = options.accumulate;
  }

  ShardPlan make() {
    check_frozen_options();
    find_parameters();
    choose_units();
    make_groups();
    find_checkpointed();
    choose_transposed();
    plan_.activate(0);
    choose_residents(plan_, options_.frozen);
    check_units();
    return std::move(plan_);
  }

 private:
  void find_parameters() {
    const auto named = nn::named_parameters(root_);
    choose_sets(named);
    for (std::size_t i = 0; i < named.size(); ++i) {
      const nn::NamedParameter& p = named[i];
      PlannedParameter planned;
      planned.name = p.name;
      planned.other_names = p.other_names;
      planned.shape = p.tensor.sizes().vec();
      planned.numel = p.tensor.numel();
      for (std::size_t set = 0; set < plan_.sets.size(); ++set)
        if (trains(p, plan_.sets[set])) planned.sets.add(set);
      planned.trainable = !planned.sets.empty();
      planned.dtype = before_ ? before_->parameters[i].dtype : p.tensor.scalar_type();
      require<ConfigError>(!planned.trainable || at::isFloatingType(planned.dtype), "parameter '",
                           p.name, "' of dtype ", c10::toString(planned.dtype),
                           " cannot train; freeze it");
      planned.used_twice = p.owners.size() > 1;
      planned.read_in_backward =
          std::any_of(p.owners.begin(), p.owners.end(), [](const torch::nn::Module* owner) {
            const auto* own = dynamic_cast<const nn::Module*>(owner);
            return !own || own->weights_in_backward();
          });
      planned.is_matrix = is_matrix(p);
      planned.multiplies = multiplies(p);
      planned.tensor = p.tensor;
      planned.init = p.init;
      owners_.push_back(p.owners);
      plan_.parameters.push_back(std::move(planned));
    }
  }

  // One set without a name, or those of the options; every pattern must match something.
  void choose_sets(const std::vector<nn::NamedParameter>& named) {
    std::vector<std::string> names;
    for (const auto& p : named) {
      names.push_back(p.name);
      names.insert(names.end(), p.other_names.begin(), p.other_names.end());
    }
    plan_.sets = options_.sets;
    require<ConfigError>(plan_.sets.size() <= SetMask::kMost, "there are ", plan_.sets.size(),
                         " sets of parameters; at most ", SetMask::kMost, " are possible");
    for (const ParameterSet& set : plan_.sets)
      require_matches(str("ShardOptions::sets: '", set.name, "'"), "parameter", set.patterns,
                      names);
    if (!plan_.sets.empty()) return;
    if (options_.trainable)
      require_matches("ShardOptions::trainable", "parameter", *options_.trainable, names);
    plan_.sets.push_back({"", options_.trainable.value_or(std::vector<std::string>{})});
  }

  bool trains(const nn::NamedParameter& p, const ParameterSet& set) const {
    if (options_.sets.empty() && !options_.trainable) return p.tensor.requires_grad();
    if (glob_match_any(set.patterns, p.name)) return true;
    return std::any_of(p.other_names.begin(), p.other_names.end(),
                       [&](const std::string& name) { return glob_match_any(set.patterns, name); });
  }

  void choose_units() {
    std::set<const torch::nn::Module*> chosen;
    for (const auto& entry : policy_.units)
      for (const Place* place : select(places_, entry, "Policy::units"))
        chosen.insert(place->module);
    if (policy_.min_unit_numel > 0) choose_by_size(chosen);
    choose_lone(chosen);

    // Registration order, which is forward order in most models; the root, which spans
    // them all, last.
    for (const Place& place : places_)
      if (!place.name.empty() && chosen.contains(place.module)) add_unit(place);
    add_unit(places_.front());

    for (const Place& place : places_) {
      const auto own = unit_of_.find(place.module);
      if (own == unit_of_.end())
        unit_of_[place.module] = place.parent ? unit_of_.at(place.parent) : plan_.units.size() - 1;
    }
  }

  // From the leaves up: a module becomes a unit when enough has gathered below it.
  void choose_by_size(std::set<const torch::nn::Module*>& chosen) const {
    std::unordered_map<const torch::nn::Module*, std::int64_t> below;
    for (const Place& place : std::views::reverse(places_)) {
      const std::int64_t numel = below[place.module] + own_numel(*place.module);
      const bool can = !place.name.empty() && dynamic_cast<nn::BoundarySlot*>(place.module);
      if (can && numel >= policy_.min_unit_numel) chosen.insert(place.module);
      if (place.parent && !chosen.contains(place.module)) below[place.parent] += numel;
    }
  }

  void choose_lone(std::set<const torch::nn::Module*>& chosen) const {
    std::set<const torch::nn::Module*> covered;
    for (const Place& place : places_) {
      if (chosen.contains(place.module) || (place.parent && covered.contains(place.parent))) {
        covered.insert(place.module);
        continue;
      }
      if (!place.name.empty() && own_numel(*place.module) >= policy_.lone_unit_numel &&
          dynamic_cast<nn::BoundarySlot*>(place.module)) {
        chosen.insert(place.module);
        covered.insert(place.module);
      }
    }
  }

  void add_unit(const Place& place) {
    PlannedUnit unit;
    unit.name = place.name;
    unit.class_name = nn::class_name(*place.module);
    unit.module = place.module;
    unit.slot = dynamic_cast<nn::BoundarySlot*>(place.module);
    unit_of_[place.module] = plan_.units.size();
    plan_.units.push_back(std::move(unit));
  }

  Strategy strategy_of(const PlannedUnit& unit) const {
    for (const auto& [entry, strategy] : options_.unit_strategies)
      if (names_module(entry, unit.name, *unit.module)) return strategy;
    return options_.strategy;
  }

  int shard_size_of(Strategy strategy, bool trainable) const {
    switch (entry_of(strategy).sliced_over) {
      case SlicedOver::all_ranks:
        if (trainable || options_.frozen.sharding == FrozenSharding::all) return plan_.world_size;
        break;
      case SlicedOver::one_rank: return 1;
      case SlicedOver::neighbours: break;
    }
    require<ConfigError>(
        options_.hybrid_shard_size >= 1 && plan_.world_size % options_.hybrid_shard_size == 0,
        "ShardOptions::hybrid_shard_size ", options_.hybrid_shard_size, " does not divide the ",
        plan_.world_size, " ranks; choose one that does");
    return options_.hybrid_shard_size;
  }

  PlannedGroup blank_group(const PlannedParameter& p, const std::vector<std::size_t>& units) const {
    PlannedGroup group;
    group.units = units;
    group.sets = p.sets;
    group.trainable = p.trainable;
    group.rest = rest_of(p.sets);
    group.strategy = strategy_of(plan_.units[units.front()]);
    const auto& mixed = options_.mixed_precision;
    const bool floating = at::isFloatingType(p.dtype);
    group.param_dtype = floating ? mixed.param.value_or(p.dtype) : p.dtype;
    // Masters of what trains are fp32 (or wider, if the model is); frozen slices are stored as they
    // are used, since nothing ever updates them.
    group.master_dtype = p.dtype == at::kDouble ? at::kDouble : at::kFloat;
    group.offloaded = options_.cpu_offload;
    group.rest_dtype = rest_dtype(p, group);
    group.storage_dtype = p.trainable ? group.master_dtype : group.rest_dtype;
    group.multiplies = options_.frozen.compute && p.multiplies && group.eight_bit_at_rest();
    group.multiplied = group.multiplies && group.eight_bit();
    group.reduce_dtype = mixed.reduce.value_or(group.param_dtype);
    group.shard_size = shard_size_of(group.strategy, p.trainable);
    if (!p.trainable && options_.frozen.residency == Residency::resident) make_resident(group);
    group.replicas = plan_.world_size / group.shard_size;
    return group;
  }

  c10::ScalarType rest_dtype(const PlannedParameter& p, const PlannedGroup& group) const {
    if (!at::isFloatingType(p.dtype)) return p.dtype;
    const auto dtype = options_.frozen.matrix_dtype().value_or(group.param_dtype);
    const bool eight_bit = kernels::is_eight_bit(dtype);
    // Of what some set trains only the 8 bits of frozen matrices are taken over, and only where the
    // masters are in the host store meanwhile.
    if (p.trainable)
      return rests_apart(p, group) && group.rest == Rest::offload ? dtype : group.param_dtype;
    return eight_bit && !can_be_eight_bit(p, group) ? group.param_dtype : dtype;
  }

  static bool can_be_eight_bit(const PlannedParameter& p, const PlannedGroup& group) {
    return p.is_matrix && group.param_dtype != at::kDouble;
  }

  // A matrix that rests in 8 bits, unless one of its sets keeps its masters on the device. Apart
  // from what else its sets train even then: a set that is added later may divide groups and never
  // joins them.
  bool rests_apart(const PlannedParameter& p, const PlannedGroup& group) const {
    const auto dtype = options_.frozen.matrix_dtype();
    if (!dtype || !kernels::is_eight_bit(*dtype) || !can_be_eight_bit(p, group)) return false;
    bool rests = false, offloads = false;
    for (std::size_t set = 0; set < plan_.sets.size(); ++set) {
      rests = rests || !p.trains_in(set);
      offloads = offloads || (p.trains_in(set) && plan_.sets[set].rest == Rest::offload);
    }
    return rests && offloads && !group.offloaded;
  }

  void check_frozen_options() const {
    const auto &dtype = options_.frozen.dtype, &compute = options_.frozen.compute;
    if (!compute) return;
    require<ConfigError>(*compute == at::kFloat8_e4m3fn, "FrozenOptions::compute cannot be ",
                         c10::toString(*compute), "; choose fp8, or leave it out");
    require<ConfigError>(!dtype || dtype == compute, "FrozenOptions::compute is fp8, but ",
                         "FrozenOptions::dtype is ", c10::toString(dtype.value_or(at::kFloat)),
                         "; what is multiplied in fp8 is stored so: leave one of the two out");
    require<ConfigError>(!options_.autocast,
                         "FrozenOptions::compute is fp8, which autocast knows nothing of; leave "
                         "ShardOptions::autocast out and set MixedPrecision::param");
    require<ConfigError>(!options_.watch_operators,
                         "FrozenOptions::compute is fp8, but watched operators cannot tell when "
                         "codes are read; leave ShardOptions::watch_operators out and make foreign "
                         "modules nn::Hooked<...>");
  }

  // Backward through a product needs the transposed codes; which set comes through must not matter
  // to how the group is laid out.
  void choose_transposed() {
    for (std::size_t set = 0; set < plan_.sets.size(); ++set) {
      plan_.activate(set);
      for (PlannedGroup& group : plan_.groups)
        if (group.multiplied && group.needed_in_backward) group.transposed = true;
    }
  }

  // Whoever asks for 8 bits gets them somewhere.
  void check_eight_bit() const {
    const auto dtype = options_.frozen.matrix_dtype();
    if (!dtype) return;
    require<ConfigError>(at::isFloatingType(*dtype) || *dtype == at::kChar,
                         "FrozenOptions::dtype cannot be ", c10::toString(*dtype),
                         "; choose fp32, bf16, fp16, int8 or fp8");
    if (options_.frozen.compute && !before_)
      require<ConfigError>(
          std::any_of(plan_.groups.begin(), plan_.groups.end(),
                      [](const PlannedGroup& group) { return group.multiplies; }),
          "FrozenOptions::compute is fp8, but no linear layer of floe's own with sides that are "
          "multiples of 16 is frozen in all phases; freeze some, or leave it out");
    // A set that is added later may take the last of them.
    if (!kernels::is_eight_bit(*dtype) || before_) return;
    require<ConfigError>(std::ranges::any_of(plan_.groups, &PlannedGroup::eight_bit_at_rest),
                         "FrozenOptions::dtype asks for 8 bits, but no matrix of the model is "
                         "frozen in all phases; freeze some, or leave it out");
  }

  // The mildest of the sets': masters that one of them wants to keep are kept.
  Rest rest_of(SetMask sets) const {
    Rest rest = Rest::drop;
    for (std::size_t set = 0; set < plan_.sets.size(); ++set)
      if (sets.has(set)) rest = std::min(rest, plan_.sets[set].rest);
    return rest;
  }

  void make_groups() {
    std::map<std::tuple<std::vector<std::size_t>, SetMask, int, int, int, std::string_view>,
             std::size_t>
        known;
    check_unit_strategies();
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      const auto& p = plan_.parameters[i];
      std::vector<std::size_t> units;
      for (const auto* owner : owners_[i]) {
        const std::size_t unit = unit_of_.at(owner);
        if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
      }
      PlannedGroup blank = blank_group(p, units);
      const char* const matrices = kind_of_matrices(p, blank);
      const auto key = std::make_tuple(units, p.sets, static_cast<int>(blank.storage_dtype),
                                       static_cast<int>(blank.param_dtype), blank.shard_size,
                                       std::string_view(matrices));
      const auto [place, is_new] = known.emplace(key, plan_.groups.size());
      if (is_new) {
        blank.name = str(plan_.units[units.front()].label(), units.size() > 1 ? " tied" : "", " ",
                         kind_of(p.sets), matrices);
        for (const std::size_t unit : units)
          plan_.units[unit].groups.push_back(plan_.groups.size());
        plan_.groups.push_back(std::move(blank));
      }
      plan_.groups[place->second].parameters.push_back(i);
    }
    for (PlannedGroup& group : plan_.groups) {
      sort_parameters(group);
      lay_out(group, plan_.parameters);
    }
    check_eight_bit();
  }

  // A unit's matrices that are ever in 8 bits stand beside what else is frozen in it, or trains
  // with them: what their name says of that.
  const char* kind_of_matrices(const PlannedParameter& p, const PlannedGroup& group) const {
    const bool multiplies = options_.frozen.compute && p.multiplies;
    if (group.eight_bit_at_rest())
      return multiplies ? " fp8 products" : group.rest_dtype == at::kChar ? " int8" : " fp8";
    if (!rests_apart(p, group)) return "";
    return multiplies ? " products" : " matrices";
  }

  // "frozen", "trainable", or the sets: "a+b".
  std::string kind_of(SetMask sets) const {
    if (sets.empty()) return "frozen";
    return plan_.sets.size() == 1 ? "trainable" : plan_.names_of(sets, "+");
  }

  void check_unit_strategies() const {
    for (const auto& [entry, strategy] : options_.unit_strategies) {
      const bool any =
          std::any_of(plan_.units.begin(), plan_.units.end(),
                      [&](const PlannedUnit& u) { return names_module(entry, u.name, *u.module); });
      if (!any) {
        std::vector<std::string> names;
        for (const auto& unit : plan_.units)
          names.push_back(is_pattern(entry) ? unit.name : unit.class_name);
        throw ConfigError(str("ShardOptions::unit_strategies: '", entry, "' matches no unit",
                              did_you_mean(entry, names)));
      }
    }
  }

  void sort_parameters(PlannedGroup& group) const {
    std::vector<std::int64_t> numels;
    for (const std::size_t i : group.parameters) numels.push_back(plan_.parameters[i].numel);
    std::vector<std::size_t> ordered;
    for (const std::size_t k : aligned_order(numels)) ordered.push_back(group.parameters[k]);
    group.parameters = std::move(ordered);
  }

  void find_checkpointed() {
    const nn::KeptActivations& kept = options_.kept_activations;
    require<ConfigError>(
        !options_.activation_checkpointing.empty() || !(kept.products || kept.in_host),
        "ShardOptions::kept_activations says what checkpointed modules keep, but none is "
        "checkpointed; name some in ShardOptions::activation_checkpointing");
    const double share = options_.checkpointed_share;
    require<ConfigError>(share > 0 && share <= 1,
                         "ShardOptions::checkpointed_share must be more than 0 and at most 1, got ",
                         share);
    require<ConfigError>(!options_.activation_checkpointing.empty() || share == 1,
                         "ShardOptions::checkpointed_share says how many modules of those named in "
                         "ShardOptions::activation_checkpointing are, but that names none");
    if (options_.activation_checkpointing.empty()) return;
    const std::set<std::string> modules_with_backward = names_with_backward();
    const auto has_backward = [&](const Place* place) {
      return modules_with_backward.contains(place->name);
    };
    bool some_keep_all = false;
    for (const auto& entry : options_.activation_checkpointing) {
      const std::vector<const Place*> named =
          select(places_, entry, "ShardOptions::activation_checkpointing");
      const std::int64_t with_backward = std::count_if(named.begin(), named.end(), has_backward);
      plan_.checkpointable.push_back(with_backward);
      std::int64_t left = share_of(share, with_backward);
      for (const Place* place : named) {
        const bool counts = has_backward(place);
        if (!counts || left > 0)
          checkpoint(*place);
        else
          some_keep_all = true;
        left -= counts;
      }
    }
    require<ConfigError>(
        share == 1 || some_keep_all, "ShardOptions::checkpointed_share is ", share,
        ", but of the modules that ShardOptions::activation_checkpointing names that is, rounded "
        "up, every one whose activations are kept; lower it, or leave it out");
  }

  // Of the modules that have one in some set: a parameter of theirs trains, or one in front of it.
  std::set<std::string> names_with_backward() const {
    std::set<std::string> modules;
    const auto add = [&](const std::string& name) {
      for (auto end = name.find('.'); end != name.npos; end = name.find('.', end + 1))
        modules.insert(name.substr(0, end));
    };
    bool trains = false;
    for (const PlannedParameter& parameter : plan_.parameters) {
      trains |= parameter.trainable;
      if (!trains) continue;
      add(parameter.name);
      for (const std::string& name : parameter.other_names) add(name);
    }
    return modules;
  }

  void checkpoint(const Place& place) {
    auto* slot = dynamic_cast<nn::BoundarySlot*>(place.module);
    require<ConfigError>(slot != nullptr, "ShardOptions::activation_checkpointing: '", place.name,
                         "' is a foreign ", nn::class_name(*place.module),
                         " without a boundary; make it an nn::Hooked<...>");
    const bool known =
        std::any_of(plan_.checkpointed.begin(), plan_.checkpointed.end(),
                    [&](const PlannedCheckpoint& other) { return other.slot == slot; });
    if (!known) plan_.checkpointed.push_back({place.name, place.module, slot});
    plan_.units[unit_of_.at(place.module)].recomputes = true;
  }

  void check_units() const {
    for (const PlannedUnit& unit : plan_.units) {
      require<ConfigError>(unit.groups.size() <= GroupMask::kMost, "unit '", unit.label(), "' has ",
                           unit.groups.size(), " groups; at most ", GroupMask::kMost,
                           " are possible");
      // In any phase: what is in place while it rests may not be while it trains, and conversely.
      const bool must_gather =
          std::any_of(unit.groups.begin(), unit.groups.end(), [&](std::size_t g) {
            const PlannedGroup& group = plan_.groups[g];
            return !group.in_place() ||
                   (group.trainable &&
                    (group.master_dtype != group.param_dtype || group.eight_bit_at_rest()));
          });
      require<ConfigError>(
          unit.slot || options_.watch_operators || !must_gather, "unit '", unit.label(),
          "' is a foreign ", unit.class_name,
          " without a boundary; make it an nn::Hooked<...>, or set watch_operators");
    }
  }

  torch::nn::Module& root_;
  const Policy& policy_;
  const ShardOptions& options_;
  const ShardPlan* before_;
  std::vector<Place> places_;
  ShardPlan plan_;
  std::vector<std::vector<torch::nn::Module*>> owners_;  // of each parameter
  std::unordered_map<const torch::nn::Module*, std::size_t> unit_of_;
};

}  // namespace

bool names_module(const std::string& entry, const std::string& name,
                  const torch::nn::Module& module) {
  if (is_pattern(entry)) return glob_match(entry, name);
  return nn::class_name(module) == entry || name == entry;
}

ShardPlan make_plan(torch::nn::Module& root, const Policy& policy, const ShardOptions& options,
                    int world_size, const ShardPlan* before) {
  return Planner(root, policy, options, world_size, before).make();
}

}  // namespace floe::shard
