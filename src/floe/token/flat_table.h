// A hash table from 64-bit keys for the inner loop of byte-pair encoding: one flat array, no removal.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace floe::token {

template <class Value>
class FlatTable {
 public:
  // Room for this many keys.
  explicit FlatTable(std::size_t most_keys = 0) {
    const std::size_t slots = std::bit_ceil(most_keys * 2 + 2);
    slots_.assign(slots, {kNoKey, {}});
    shift_ = 64 - std::countr_zero(slots);
  }

  // Replaces the value of a key that is there already.
  void put(std::uint64_t key, Value value) {
    std::size_t at = first_slot(key);
    while (slots_[at].key != kNoKey && slots_[at].key != key) at = next_slot(at);
    slots_[at] = {key, value};
  }
  // Null when there is none.
  const Value* find(std::uint64_t key) const {
    for (std::size_t at = first_slot(key);; at = next_slot(at)) {
      if (slots_[at].key == key) return &slots_[at].value;
      if (slots_[at].key == kNoKey) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

  struct Slot {
    std::uint64_t key;
    Value value;
  };

  std::size_t first_slot(std::uint64_t key) const {
    key ^= key >> 29;
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15ULL >> shift_);
  }
  std::size_t next_slot(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  std::vector<Slot> slots_;
  int shift_ = 63;
};

}  // namespace floe::token
