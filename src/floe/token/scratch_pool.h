// Objects that one thread at a time may use, kept for whoever comes next: as many as there were threads
// at once.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace floe::token {

template <class Scratch>
class ScratchPool {
 public:
  // Gives the object back at the end of its life.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<Scratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }
    Scratch* operator->() { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  // Thread-safe.
  Lease take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return Lease(*this, std::move(scratch));
      }
    }
    return Lease(*this, std::make_unique<Scratch>());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace floe::token
