// Gathering for modules whose forward cannot be intercepted.
//
// Note [Watching operators]
// torch::nn modules have no hooks and a non-virtual forward, so a closed container (for example
// torch::nn::TransformerEncoder, which clones its layers itself) cannot be given boundaries. With
// ShardOptions::watch_operators a callback sees the inputs of every operator before it runs,
// forward and backward, and maps their storage to a group: a group that is touched is gathered, and
// a unit stays whole until another watched unit is touched. Limits, compared with boundaries: about
// 3 µs per operator; nothing is prefetched; the last touched unit stays whole until the pass ends;
// activation checkpointing by policy is not possible; an operator that reads two watched units at
// once makes both whole.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "floe/shard/pass/unit.h"

namespace floe::shard {

class OperatorWatch {
 public:
  // Watches those of an engine's units that have no boundary.
  explicit OperatorWatch(const std::vector<std::unique_ptr<Unit>>& units);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // Called from every thread that runs operators; only the model's own reach parameters.
  void touch(const at::RecordFunction& function);
  // Lets go of everything.
  void release_all();

 private:
  // The watched units whose parameters are among the value's tensors.
  void find(const c10::IValue& value, std::vector<std::size_t>& touched) const;
  void find(const at::Tensor& tensor, std::vector<std::size_t>& touched) const;

  const std::vector<std::unique_ptr<Unit>>& units_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> unit_of_storage_;
  std::vector<std::size_t> gathered_;  // watched units that are gathered now
};

}  // namespace floe::shard
