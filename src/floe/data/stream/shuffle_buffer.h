// WebDataset's buffer shuffle: mixes a stream of any length in bounded memory.
//
//   ShuffleBuffer<int> buffer({.samples = 2000, .initial = 500});
//   while (auto item = buffer.next([&] { return source.next(); }, random)) use(*item);
//
// It shuffles the shards of a pass, the samples of a stream, and mere references to these samples:
// the same steps on samples and on references give the same order, which is how a position is kept
// without the samples (Note [Positions] in stream_state.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "floe/data/python/random.h"

namespace floe::data {

struct ShuffleSize {
  std::size_t samples = 5000;
  std::size_t initial = 1000;  // from which on it gives some; at most `samples`
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  // of items that have any
};

// One step takes an item, a second one while the buffer is below its size, and gives one when it
// holds `initial`: index randint(0, n - 1), the last item moves into the hole. A buffer that holds
// its bytes counts as full, so it takes one and gives one; above them it gives without taking.
template <class Item>
class ShuffleBuffer {
 public:
  explicit ShuffleBuffer(const ShuffleSize& size) : size_(size) {
    size_.initial = std::min(size_.initial, size_.samples);
  }

  // The next item; nothing when the source has ended and nothing is left. `pull` returns
  // std::optional<Item>, nothing at the end, and is not called again after that.
  template <class Pull>
  std::optional<Item> next(Pull&& pull, PythonRandom& random) {
    while (wants_more())
      if (auto item = pull())
        take(std::move(*item));
      else
        end();
    if (empty()) return std::nullopt;
    return give(random);
  }

  // The same in single steps:
  //   while (buffer.wants_more()) source ? buffer.take(item) : buffer.end();
  //   if (!buffer.empty()) use(buffer.give(random));
  bool wants_more() const { return !ended_ && !ready_; }
  void take(Item item) {
    bytes_ += bytes_of(item);
    items_.push_back(std::move(item));
    const bool second = !took_one_ && items_.size() < size_.samples && bytes_ < size_.bytes;
    took_one_ = second;
    if (!second) ready_ = items_.size() >= size_.initial || bytes_ >= size_.bytes;
  }
  // There are no more items; what it holds is given in the same way.
  void end() { ended_ = true; }
  // Not empty, and wants no more.
  Item give(PythonRandom& random) {
    std::swap(items_[random.below(items_.size())], items_.back());
    Item item = std::move(items_.back());
    items_.pop_back();
    bytes_ -= bytes_of(item);
    took_one_ = false;
    ready_ = bytes_ > size_.bytes;
    return item;
  }

  bool empty() const { return items_.empty(); }
  bool ended() const { return ended_; }
  std::int64_t bytes() const { return bytes_; }
  const std::vector<Item>& items() const { return items_; }
  const ShuffleSize& size() const { return size_; }

  // A buffer that has just given an item and holds these.
  void restore(std::vector<Item> items, bool ended) {
    items_ = std::move(items);
    bytes_ = 0;
    for (const Item& item : items_) bytes_ += bytes_of(item);
    took_one_ = false;
    ended_ = ended;
    ready_ = bytes_ > size_.bytes;
  }

 private:
  static std::int64_t bytes_of(const Item& item) {
    if constexpr (requires { item.bytes(); })
      return item.bytes();
    else if constexpr (requires { item.bytes; })
      return item.bytes;
    else
      return 0;
  }

  ShuffleSize size_;
  std::vector<Item> items_;
  std::int64_t bytes_ = 0;
  bool took_one_ = false;  // of this step, and may take another
  bool ready_ = false;     // gives before it takes
  bool ended_ = false;
};

}  // namespace floe::data
