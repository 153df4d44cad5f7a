#pragma once
#include <chrono>
namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace transport {
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};
}  // namespace transport
}  // namespace gloo
