// The control plane's table as a store of c10d, for the groups that meet there.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "floe/control/control_plane.h"

namespace floe::comm {

// A wait ends with CommError as soon as a rank has failed, not only at its time limit.
class ControlStore final : public c10d::Store {
 public:
  ControlStore(std::shared_ptr<control::ControlPlane> plane, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), plane_(std::move(plane)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<ControlStore>(plane_, timeout_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& current,
                                       const std::vector<std::uint8_t>& wanted) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  control::Reply call(const control::Request& request, std::chrono::milliseconds wait);

  std::shared_ptr<control::ControlPlane> plane_;
};

}  // namespace floe::comm
