// Modules of one kind, named "0", "1", "2", ...
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "floe/nn/module.h"

namespace floe::nn {

template <class M>
class List : public Module {
 public:
  template <class... Args>
  void add(Args&&... args) {
    items_.push_back(child<M>(std::to_string(items_.size()), std::forward<Args>(args)...));
  }
  std::size_t size() const { return items_.size(); }
  const Ptr<M>& operator[](std::size_t i) const { return items_[i]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<Ptr<M>> items_;
};

}  // namespace floe::nn
