#include "floe/checkpoint/run_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/nn/load.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"

namespace floe::checkpoint {
namespace {

using shard::FlatGroup;
using shard::Piece;

// Of a slice of `used` elements, those that this rank writes.
struct Elements {
  std::int64_t begin = 0, end = 0;
};

Elements share_of(const FlatGroup& group, std::int64_t used, Share share) {
  const std::int64_t copies = group.plan().replicas;
  if (share == Share::held || copies <= 1) return {0, used};
  const std::int64_t replica = group.replica();
  return {used * replica / copies, used * (replica + 1) / copies};
}

// Of elements [first, first + count), those of [other_first, other_first + other_count).
Elements common(std::int64_t first, std::int64_t count, std::int64_t other_first,
                std::int64_t other_count) {
  return {std::max(first, other_first), std::min(first + count, other_first + other_count)};
}

class Collector {
 public:
  Collector(const RunState& state, Share share) : state_(state), share_(share) {
    for (const auto& group : state.engine->groups())
      for (std::size_t i = 0; i < group->plan().parameters.size(); ++i)
        places_[group->parameter(i).name] = {group.get(), i};
    for (const TableRows& part : state.rows)
      if (writes(part.table) && writes(part.rows)) {
        in_table_[part.table].push_back(&part);
        of_rows_[part.rows].push_back(&part);
      }
  }

  std::vector<StateTensor> collect() {
    const auto trainable = state_.engine->trainable_groups();
    for (const auto& group : state_.engine->groups()) {
      const auto found = std::find(trainable.begin(), trainable.end(), group.get());
      if (found != trainable.end())
        add_trainable(*group, static_cast<std::size_t>(found - trainable.begin()));
      else if (!group->plan().eight_bit_alone())
        add(*group, {"model"}, "", group->values(), true);
    }
    return std::move(tensors_);
  }

 private:
  struct InGroup {
    const FlatGroup* group = nullptr;
    std::size_t index = 0;
  };

  bool writes(const std::string& name) const {
    const auto place = places_.find(name);
    return place != places_.end() && !place->second.group->plan().eight_bit_alone() &&
           has(state_, place->second.group->parameter(place->second.index));
  }

  void add_trainable(const FlatGroup& group, std::size_t index) {
    add(group, {"model"}, "", group.values(), true);
    if (state_.ema) add(group, {"ema"}, "", state_.ema->held(index), true);
    for (const SetOptimizer& set : state_.optimizers) {
      std::vector<std::string> above = optimizer_path(set.name);
      above.emplace_back("state");
      for (const optim::StateSlice& slice : set.optimizer->held_slices(index))
        add(group, above, slice.name, slice.values, false);
      if (const at::Tensor updates = set.optimizer->updates(index); updates.defined())
        add_count(group, above, updates);
    }
  }

  // Calls visit(piece, parameter) for the pieces in this rank's share, cut to it.
  template <class F>
  void for_each_piece(const FlatGroup& group, F&& visit) {
    const std::vector<Piece> pieces = group.pieces();
    if (pieces.empty()) return;
    const std::int64_t used = pieces.back().slice_offset + pieces.back().numel;
    const Elements mine = share_of(group, used, share_);
    for (Piece piece : pieces) {
      const std::int64_t begin = std::max(piece.slice_offset, mine.begin);
      const std::int64_t end = std::min(piece.slice_offset + piece.numel, mine.end);
      if (begin >= end) continue;
      piece.first += begin - piece.slice_offset;
      piece.slice_offset = begin;
      piece.numel = end - begin;
      if (has(state_, group.parameter(piece.index))) visit(piece, group.parameter(piece.index));
    }
  }

  void add(const FlatGroup& group, const std::vector<std::string>& above, const std::string& below,
           const at::Tensor& slice, bool with_other_names) {
    const at::AutoGradMode grad_off(false);
    const bool weights = above == std::vector<std::string>{"model"};
    const bool averages = above == std::vector<std::string>{"ema"};
    for_each_piece(group, [&](const Piece& piece, const shard::PlannedParameter& parameter) {
      StateTensor tensor = named(parameter, above, below, with_other_names);
      tensor.dtype = nn::file_dtype(slice.scalar_type());
      const at::Tensor values = slice.narrow(0, piece.slice_offset, piece.numel);
      if (weights && in_table_.contains(parameter.name))
        tensor.pieces = without_rows(parameter.name, {piece.first, values});
      else
        tensor.pieces.push_back({piece.first, values});
      if (!tensor.pieces.empty()) tensors_.push_back(std::move(tensor));
      if ((weights || averages) && of_rows_.contains(parameter.name))
        add_to_tables(above, parameter.name, {piece.first, values});
    });
  }

  static StateTensor named(const shard::PlannedParameter& parameter,
                           const std::vector<std::string>& above, const std::string& below,
                           bool with_other_names) {
    StateTensor tensor;
    tensor.path = above;
    tensor.path.push_back(parameter.name);
    if (!below.empty()) tensor.path.push_back(below);
    if (with_other_names)
      for (const std::string& other : parameter.other_names)
        tensor.other_names.push_back(str(join(above, "."), ".", other));
    tensor.shape = parameter.shape;
    return tensor;
  }

  // See Note [Rows in tables].
  std::vector<StatePiece> without_rows(const std::string& table, const StatePiece& piece) const {
    std::vector<Elements> left{{piece.first, piece.first + piece.values.numel()}};
    for (const TableRows* part : in_table_.at(table)) {
      std::vector<Elements> kept;
      for (const Elements& run : left) {
        const Elements cut = common(run.begin, run.end - run.begin, part->table_first, part->count);
        if (cut.begin >= cut.end) {
          kept.push_back(run);
          continue;
        }
        if (run.begin < cut.begin) kept.push_back({run.begin, cut.begin});
        if (cut.end < run.end) kept.push_back({cut.end, run.end});
      }
      left = std::move(kept);
    }
    std::vector<StatePiece> pieces;
    for (const Elements& run : left)
      pieces.push_back(
          {run.begin, piece.values.narrow(0, run.begin - piece.first, run.end - run.begin)});
    return pieces;
  }

  void add_to_tables(const std::vector<std::string>& above, const std::string& rows,
                     const StatePiece& piece) {
    const bool averages = above.front() == "ema";
    for (const TableRows* part : of_rows_.at(rows)) {
      const Elements mine =
          common(piece.first, piece.values.numel(), part->rows_first, part->count);
      if (mine.begin >= mine.end) continue;
      const InGroup& place = places_.at(part->table);
      const shard::PlannedParameter& table = place.group->parameter(place.index);
      if (averages && table.trainable) continue;  // it has averages of its own
      const at::ScalarType dtype = place.group->values().scalar_type();
      StateTensor tensor = named(table, above, "", true);
      if (averages) tensor.rest_of = str("model.", table.name);
      tensor.dtype = nn::file_dtype(dtype);
      tensor.pieces.push_back(
          {part->table_first + mine.begin - part->rows_first,
           piece.values.narrow(0, mine.begin - piece.first, mine.end - mine.begin).to(dtype)});
      tensors_.push_back(std::move(tensor));
    }
  }

  // One number for the whole group, in the file once per parameter: whoever writes a parameter's
  // first element writes it.
  void add_count(const FlatGroup& group, const std::vector<std::string>& above,
                 const at::Tensor& updates) {
    for_each_piece(group, [&](const Piece& piece, const shard::PlannedParameter& parameter) {
      if (piece.first != 0) return;
      StateTensor tensor;
      tensor.path = above;
      tensor.path.insert(tensor.path.end(), {parameter.name, "step"});
      tensor.dtype = nn::file_dtype(updates.scalar_type());
      tensor.pieces.push_back({0, updates.view({1})});
      tensors_.push_back(std::move(tensor));
    });
  }

  const RunState& state_;
  Share share_;
  std::map<std::string, InGroup> places_;
  std::map<std::string, std::vector<const TableRows*>> in_table_, of_rows_;
  std::vector<StateTensor> tensors_;
};

// A setting as Python has it.
pickle::Value setting(const optim::Setting& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* numbers = std::get_if<std::vector<double>>(&value))
    return pickle::tuple(pickle::Items(numbers->begin(), numbers->end()));
  return {};
}

}  // namespace

std::string StateTensor::name() const { return join(path, "."); }

bool has(const RunState& state, const shard::PlannedParameter& parameter) {
  return parameter.trainable || state.content == Content::full ||
         state.kept.contains(parameter.name);
}

void check_savable(const RunState& state) {
  const char* key =
      state.engine->options().frozen.compute ? "strategy.frozen.compute" : "strategy.frozen.dtype";
  for (const auto& group : state.engine->plan().groups)
    for (const std::size_t p : group.parameters) {
      const shard::PlannedParameter& parameter = state.engine->plan().parameters[p];
      if (!group.eight_bit_alone()) continue;
      require<ConfigError>(
          !state.kept.contains(parameter.name), "'", parameter.name,
          "' is frozen and stored in 8 bits (", key,
          "), but checkpoints must hold it as it was: it is not of the frozen files (it was "
          "trained, began from random numbers, or came with model.weights or a checkpoint); leave ",
          key, " out, or let it train");
      require<ConfigError>(!has(state, parameter), "'", parameter.name, "' is stored in 8 bits (",
                           key,
                           "), so a checkpoint cannot have it as it was read; save with "
                           "checkpoint.content: trainable, which names the frozen files, and put "
                           "both together with floe export");
    }
}

std::vector<StateTensor> state_tensors(const RunState& state, Share share) {
  check_savable(state);
  return Collector(state, share).collect();
}

std::vector<StateObject> state_objects(const RunState& state) {
  std::vector<StateObject> objects;
  for (const SetOptimizer& set : state.optimizers) {
    const auto groups = set.optimizer->parameter_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto add = [&](const std::string& key, pickle::Value value) {
        pickle::Items path;
        for (const std::string& part : optimizer_path(set.name)) path.emplace_back(part);
        path.insert(path.end(), {"param_groups", static_cast<std::int64_t>(g), key});
        objects.push_back(
            {setting_name(set.name, g, key), pickle::tuple(std::move(path)), std::move(value)});
      };
      for (const auto& [key, value] : groups[g].settings) add(key, setting(value));
      pickle::Items names;
      for (const std::string& name : groups[g].names) names.emplace_back(name);
      add("params", pickle::list(std::move(names)));
    }
  }
  return objects;
}

std::string model_digest(const shard::ShardPlan& plan) {
  std::vector<const shard::PlannedParameter*> sorted;
  for (const auto& parameter : plan.parameters) sorted.push_back(&parameter);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  Hash64 hash;
  for (const auto* parameter : sorted) {
    hash.add(parameter->name).add(parameter->shape.size());
    for (const std::int64_t size : parameter->shape) hash.add(static_cast<std::uint64_t>(size));
  }
  return hex_digits(hash.value());
}

}  // namespace floe::checkpoint
