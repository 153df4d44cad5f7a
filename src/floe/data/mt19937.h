// The Mersenne Twister MT19937 (M. Matsumoto, T. Nishimura, 1998), the engine below Python's `random`
// and torch's CPU generator. Its whole state can be saved and set, so that a run can go on where
// another stopped.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace floe::data {

class Mt19937 {
 public:
  static constexpr std::size_t kNumWords = 624;

  explicit Mt19937(std::uint32_t seed = 5489);
  // "Initialisation by array" of the authors' 2002 version; `key` must not be empty.
  static Mt19937 from_array(std::span<const std::uint32_t> key);

  std::uint32_t next();

  // The words of the state and, last, the position in them: 625 numbers.
  std::vector<std::uint32_t> state() const;
  // Throws DataError for anything that state() cannot have given.
  void set_state(std::span<const std::uint32_t> state);

 private:
  void refill();

  std::array<std::uint32_t, kNumWords> words_;
  std::uint32_t position_ = kNumWords;
};

}  // namespace floe::data
