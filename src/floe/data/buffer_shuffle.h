// WebDataset's buffer shuffle: mixes a stream of any length in bounded memory.
//
//   BufferShuffle<int> shuffle(2000, 500);
//   while (auto item = shuffle.next([&] { return source.next(); }, random)) use(*item);
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "floe/data/python_random.h"

namespace floe::data {

template <class T>
class BufferShuffle {
 public:
  // Holds up to `size` items and gives the first when it holds min(initial, size).
  BufferShuffle(std::size_t size, std::size_t initial)
      : size_(size), initial_(std::min(initial, size)) {}

  // The next item; nullopt when the source has ended and nothing is left. `pull` returns
  // std::optional<T>, nullopt at the end, and is not called again after that.
  // One step takes one item, a second one while the buffer is below its size, and then gives one:
  // index randint(0, n - 1), the last item moves into the hole.
  template <class Pull>
  std::optional<T> next(Pull&& pull, PythonRandom& random) {
    while (take(pull)) {
      if (items_.size() < size_) take(pull);
      if (items_.size() >= initial_) return give(random);
    }
    if (items_.empty()) return std::nullopt;
    return give(random);
  }

  // What it holds and whether the source has ended, for checkpoints.
  const std::vector<T>& items() const { return items_; }
  bool source_ended() const { return ended_; }
  void restore(std::vector<T> items, bool source_ended) {
    items_ = std::move(items);
    ended_ = source_ended;
  }

 private:
  template <class Pull>
  bool take(Pull&& pull) {
    if (ended_) return false;
    std::optional<T> item = pull();
    ended_ = !item.has_value();
    if (item) items_.push_back(std::move(*item));
    return item.has_value();
  }

  T give(PythonRandom& random) {
    std::swap(items_[random.below(items_.size())], items_.back());
    T item = std::move(items_.back());
    items_.pop_back();
    return item;
  }

  std::size_t size_, initial_;
  std::vector<T> items_;
  bool ended_ = false;
};

}  // namespace floe::data
