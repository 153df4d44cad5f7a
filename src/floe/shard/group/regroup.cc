#include "floe/shard/group/regroup.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/nn/load.h"
#include "floe/shard/group/eight_bit_rows.h"
#include "floe/shard/group/fill.h"

namespace floe::shard {
namespace {

// The new plan has the group as it is.
bool stays(const PlannedGroup& before, const PlannedGroup& after) {
  return before.parameters == after.parameters && before.shard_size == after.shard_size &&
         before.storage_dtype == after.storage_dtype && before.rest_dtype == after.rest_dtype &&
         before.multiplies == after.multiplies && before.transposed == after.transposed &&
         before.masters_away() == after.masters_away() && before.offloaded == after.offloaded;
}

// The group's slice out of the codes and scales of all of `old`, which has all its parameters.
void cut_eight_bit(const at::Tensor& stored, const FlatGroup& old, FlatGroup& group) {
  const kernels::EightBitSlices& layout = old.plan().eight_bit_slices;
  const at::Tensor codes = layout.all_codes(stored), scales = layout.all_scales(stored);
  group.slice().zero_();
  for (const Piece& piece : group.pieces()) {
    const PlannedParameter& parameter = group.parameter(piece.index);
    std::size_t place = 0;
    while (old.parameter(place).name != parameter.name) ++place;
    const std::int64_t row_numel = parameter.shape[1];
    const std::int64_t row = piece.first / row_numel;
    const std::int64_t rows = ceil_div(piece.first + piece.numel, row_numel) - row;
    store_rows(group, piece, row,
               {codes.narrow(0, layout.matrices[place].offset + row * row_numel, rows * row_numel)
                    .view({rows, row_numel}),
                scales.narrow(0, layout.matrices[place].rows_before + row, rows)});
  }
}

}  // namespace

at::Tensor cut_slice(const at::Tensor& whole, const FlatGroup& from, const FlatGroup& to) {
  const at::AutoGradMode grad_off(false);
  at::Tensor slice = at::zeros({to.plan().layout.slice_numel()}, whole.options());
  for (const Piece& piece : to.pieces()) {
    std::size_t place = 0;
    while (from.parameter(place).name != to.parameter(piece.index).name) ++place;
    const std::int64_t offset = from.plan().layout.offset(place);
    slice.narrow(0, piece.slice_offset, piece.numel)
        .copy_(whole.narrow(0, offset + piece.first, piece.numel));
  }
  return slice;
}

std::vector<at::Tensor> Relayout::apply(const std::vector<at::Tensor>& slices) const {
  std::vector<at::Tensor> result(parts_.size());
  at::Tensor whole;  // of one group at a time
  std::size_t gathered = kNone;
  for (std::size_t n = 0; n < parts_.size(); ++n) {
    const Part& part = parts_[n];
    if (part.from == kNone || !slices[part.from].defined()) continue;
    if (!part.before) {
      result[n] = slices[part.from];
      continue;
    }
    if (gathered != part.from) {
      whole = at::Tensor();
      whole = part.before->gather_slice(slices[part.from]);
      gathered = part.from;
    }
    result[n] = cut_slice(whole, *part.before, *part.after);
  }
  return result;
}

void check_masters(const std::vector<std::unique_ptr<FlatGroup>>& before, const ShardPlan& plan,
                   const TensorSource* reread) {
  for (const auto& group : before) {
    if (!group->plan().eight_bit_alone()) continue;
    for (const std::size_t p : group->plan().parameters) {
      const PlannedParameter& parameter = plan.parameters[p];
      if (!parameter.trainable) continue;
      require<ConfigError>(reread, "'", parameter.name,
                           "' is to train, but is stored in 8 bits, which are too few to start "
                           "from; set `reread`, so that it is read again from the files");
      require<ConfigError>(nn::find_any(*reread, parameter.name, parameter.other_names), "'",
                           parameter.name,
                           "' is to train, but is stored in 8 bits, and no file has it to be read "
                           "again; name it in a set from the start");
    }
  }
}

Regrouped regroup(std::vector<std::unique_ptr<FlatGroup>> before, const ShardPlan& plan,
                  Context& context, const TensorSource* reread) {
  const at::AutoGradMode grad_off(false);
  Regrouped result;
  result.groups.resize(plan.groups.size());
  result.origin.resize(plan.groups.size());
  // Both plans list the same parameters in the same order.
  std::unordered_map<std::size_t, std::size_t> home;  // of each parameter, before
  for (std::size_t g = 0; g < before.size(); ++g)
    for (const std::size_t p : before[g]->plan().parameters) home[p] = g;
  std::vector<std::vector<std::size_t>> heirs(before.size());
  for (std::size_t g = 0; g < plan.groups.size(); ++g)
    heirs[home.at(plan.groups[g].parameters.front())].push_back(g);

  for (std::size_t b = 0; b < before.size(); ++b) {
    FlatGroup& old = *before[b];
    for (const std::size_t g : heirs[b]) result.origin[g] = &old;
    if (heirs[b].size() == 1 && stays(old.plan(), plan.groups[heirs[b].front()])) {
      const std::size_t g = heirs[b].front();
      old.rebind(g, plan.groups[g], plan);
      result.groups[g] = std::move(before[b]);
      continue;
    }
    const bool eight_bit = old.plan().eight_bit_alone();
    const at::Tensor whole = eight_bit ? old.gather_stored() : old.gather_values();
    old.forget_values();
    for (const std::size_t g : heirs[b]) {
      auto group = std::make_unique<FlatGroup>(g, plan.groups[g], plan, context);
      if (!eight_bit)
        group->values().copy_(cut_slice(whole, old, *group));
      else if (group->plan().eight_bit_alone())
        cut_eight_bit(whole, old, *group);
      else
        group->values().zero_();  // all of it is read again (check_masters)
      SharedReads reads;
      if (reread && !old.plan().trainable && group->plan().trainable)
        read_group(*group, *reread, reads);
      reads.finish();
      group->values_changed();
      group->adopt_parameters();
      result.groups[g] = std::move(group);
    }
    result.divided.push_back(std::move(before[b]));
  }
  return result;
}

Relayout Regrouped::relayout(const std::vector<FlatGroup*>& trainable_before,
                             const std::vector<FlatGroup*>& trainable_after) const {
  std::vector<Relayout::Part> parts;
  for (FlatGroup* group : trainable_after) {
    FlatGroup* from = origin[group->id()];
    Relayout::Part part;
    const auto place = std::find(trainable_before.begin(), trainable_before.end(), from);
    if (place != trainable_before.end())
      part.from = static_cast<std::size_t>(place - trainable_before.begin());
    part.before = from == group ? nullptr : from;
    part.after = group;
    parts.push_back(part);
  }
  return Relayout(std::move(parts));
}

}  // namespace floe::shard
