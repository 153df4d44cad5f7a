// The fixed pool of buffers for gathered parameters and unsharded gradients.
//
// Note [Pool]
// A buffer is handed out whole and comes back whole. The pool never holds more than its capacity,
// except when what must be whole at the same time is larger: then it grows, says so once, and the
// excess is given back as soon as it is free. Requests are served from a free buffer of that size,
// else by a new one, for which free buffers of other sizes make room. A buffer that nothing in the
// next steps will ask for is freed instead of kept, so idle buffers never stand beside the largest
// gradient, and between steps a rank holds its slices only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace floe::shard {

// What a pool asks about the rest of the pass, to decide whether a buffer that comes back is kept.
// No is always right: it costs an allocation, never memory.
class BufferForecast {
 public:
  virtual ~BufferForecast() = default;
  // Whether one of the next units will ask for a buffer of that size for its parameters, ...
  virtual bool parameter_buffer_ahead(std::int64_t bytes) const = 0;
  // ... or for its gradients.
  virtual bool gradient_buffer_ahead(std::int64_t bytes) const = 0;
};

class BufferPool {
 public:
  BufferPool(std::string name, c10::Device device, std::int64_t capacity_bytes);

  // A one-dimensional byte tensor of that size.
  at::Tensor take(std::int64_t bytes);
  // `keep`: something of that size will be asked for again soon.
  void give_back(at::Tensor buffer, bool keep);
  // Whether `take(bytes)` would stay inside the capacity.
  bool has_room(std::int64_t bytes) const;

  void set_capacity(std::int64_t bytes) { capacity_bytes_ = bytes; }
  // Frees every buffer that is not in use.
  void trim();

  std::int64_t held_bytes() const { return held_bytes_; }  // in use and free
  std::int64_t used_bytes() const { return used_bytes_; }
  std::int64_t peak_bytes() const { return peak_bytes_; }  // of held_bytes, since the last reset
  void reset_peak() { peak_bytes_ = held_bytes_; }

 private:
  void make_room(std::int64_t bytes);

  std::string name_;
  c10::Device device_;
  std::int64_t capacity_bytes_;
  std::int64_t held_bytes_ = 0, used_bytes_ = 0, peak_bytes_ = 0;
  bool said_overflow_ = false;
  std::vector<at::Tensor> free_;  // oldest first
};

}  // namespace floe::shard
