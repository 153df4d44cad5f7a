// What all parts of one engine share.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "floe/comm/world.h"
#include "floe/shard/group/pool.h"
#include "floe/shard/group/stream.h"
#include "floe/shard/observer.h"
#include "floe/shard/options.h"
#include "floe/shard/pass/collective_hash.h"
#include "floe/shard/slice_owner.h"
#include "floe/shard/states.h"

namespace floe::shard {

struct Context {
  Context(std::shared_ptr<comm::World> joined, std::int64_t pool_bytes, std::int64_t gradient_bytes)
      : world(std::move(joined)),
        device(world->device()),
        pool("parameter", device, pool_bytes),
        gradient_pool("gradient", device, gradient_bytes),
        side(device),
        between(device),
        moves(device) {}

  std::shared_ptr<comm::World> world;
  c10::Device device;
  BufferPool pool;           // gathered parameters
  BufferPool gradient_pool;  // unsharded gradients
  SideStream side;           // collectives between the ranks that slice a group
  SideStream between;  // ... between those that hold copies of a slice: no gather waits for them
  SideStream moves;    // copies from the host store: no gather waits for them
  CollectiveHash collectives;
  PassPhase phase = PassPhase::idle;
  bool gradients_stay = false;             // see Engine::keep_gradients_in_place
  bool measure_gradients = false;          // see Engine::measure_local_gradients
  std::vector<at::Tensor> gradient_norms;  // of what this rank gave to reductions
  std::vector<Observer*> observers;
  std::vector<SliceOwner*> owners;
  const BufferForecast* forecast = nullptr;  // set before the first pass

  // The phase is filled in here.
  void emit(Event event) const {
    if (observers.empty()) return;
    event.phase = phase;
    for (Observer* observer : observers) observer->on(event);
  }
  void emit(Event::Kind kind, std::string_view unit, std::string_view group, std::int64_t bytes,
            double seconds = 0) const {
    emit({.kind = kind, .unit = unit, .group = group, .bytes = bytes, .seconds = seconds});
  }
  // Of a collective that works on this tensor.
  void emit(Event::Kind kind, std::string_view unit, std::string_view group,
            const at::Tensor& tensor) const {
    emit({.kind = kind,
          .unit = unit,
          .group = group,
          .bytes = static_cast<std::int64_t>(tensor.nbytes()),
          .dtype = tensor.scalar_type()});
  }
};

}  // namespace floe::shard
