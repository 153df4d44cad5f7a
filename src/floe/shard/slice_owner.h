// Whoever keeps tensors that are sliced like the engine's groups: an optimizer its
// state, an average.
#pragma once

#include <cstddef>

namespace floe::shard {

class Relayout;

// Called by the engine between steps, on all ranks. Groups are counted as in
// Engine::trainable_groups.
class SliceOwner {
 public:
  virtual ~SliceOwner() = default;
  // `set` stops training and `next` will: what belongs to the first and not to the second leaves
  // the device, as Rest says. Comes before anything of the next set arrives.
  virtual void deactivate(std::size_t set, std::size_t next) = 0;
  // `set` begins to train: what belongs to it takes its place on the device.
  virtual void activate(std::size_t set) = 0;
  // The first backward after that begins. What only an update needs is copied back behind it:
  // copied earlier it would keep the first batches from the device.
  virtual void prefetch() {}
  // The groups are others now (Engine::set_trainable). Collective.
  virtual void relayout(const Relayout& relayout) = 0;
};

}  // namespace floe::shard
