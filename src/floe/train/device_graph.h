// Work of a GPU, recorded once and replayed: a CUDA graph. In builds without CUDA there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace floe::train {

// Device memory that recorded work allocates from. Graphs that never run beside each other, and leave
// nothing there that is needed later, can share one.
class DevicePool {
 public:
  DevicePool();
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  // That the device keeps for it now.
  std::int64_t bytes() const;

 private:
  friend class DeviceGraph;
  struct State;
  std::unique_ptr<State> state_;
};

class DeviceGraph {
 public:
  // Whether this build can record anything.
  static bool available();

  DeviceGraph();
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Calls `work` and keeps what it issues to the current stream, which must not be the default one, and to
  // streams that begin after it and that it waits for. Nothing is computed. Throws Error when the work waits
  // for the device or touches host memory, which a replay would find changed.
  void record(DevicePool& pool, const std::function<void()>& work);
  // On the current stream.
  void replay();
  std::int64_t num_launches() const { return num_launches_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::int64_t num_launches_ = 0;  // kernels, copies and fills
};

}  // namespace floe::train
