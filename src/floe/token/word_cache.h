// The ids of words seen lately. Text repeats a few thousand words, so most are found here.
//
// A fixed number of slots, each as large as a cache line; a new word takes the slot of the old one.
// Long words are not kept. Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace floe::token {

class WordCache {
 public:
  WordCache() : slots_(kNumSlots) {}

  // Appends the ids of the word and returns true, if it is here.
  bool find(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kMostBytes) return false;
    const Slot& slot = slots_[slot_of(word)];
    if (slot.num_bytes != word.size() || std::memcmp(slot.bytes, word.data(), word.size()) != 0)
      return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }

  void keep(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.empty() || word.size() > kMostBytes || ids.size() > kMostIds) return;
    Slot& slot = slots_[slot_of(word)];
    slot.num_bytes = static_cast<std::uint8_t>(word.size());
    slot.num_ids = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.bytes, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), slot.ids);
  }

 private:
  static constexpr std::size_t kNumSlots = 1 << 14, kMostBytes = 30, kMostIds = 8;

  struct alignas(64) Slot {
    std::uint8_t num_bytes = 0, num_ids = 0;
    char bytes[kMostBytes];
    std::int32_t ids[kMostIds];
  };
  static_assert(sizeof(Slot) == 64);

  static std::size_t slot_of(std::string_view word) {
    std::uint64_t hash = word.size() * 0x9e3779b97f4a7c15ULL;
    const char* at = word.data();
    std::size_t rest = word.size();
    for (; rest >= 8; at += 8, rest -= 8) hash = mixed(hash, load(at, 8));
    hash = mixed(hash, load(at, rest));
    return static_cast<std::size_t>(hash >> 40) & (kNumSlots - 1);
  }
  static std::uint64_t load(const char* at, std::size_t bytes) {
    std::uint64_t word = 0;
    if (bytes == 8) {
      std::memcpy(&word, at, 8);
    } else if (bytes >= 4) {
      std::uint32_t low, high;
      std::memcpy(&low, at, 4);
      std::memcpy(&high, at + bytes - 4, 4);
      word = std::uint64_t{high} << 32 | low;
    } else if (bytes > 0) {
      word = static_cast<unsigned char>(at[0]) |
             std::uint64_t{static_cast<unsigned char>(at[bytes / 2])} << 8 |
             std::uint64_t{static_cast<unsigned char>(at[bytes - 1])} << 16;
    }
    return word;
  }
  static std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9ULL;
    return hash ^ hash >> 32;
  }

  std::vector<Slot> slots_;
};

}  // namespace floe::token
