// Some of up to 64 things that are counted from 0.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace floe::shard {

// `Of`: what is counted, so that masks of different things are of different types.
template <class Of>
class Mask {
 public:
  static constexpr std::size_t kMost = 64;

  constexpr Mask() = default;  // of none
  // Of all, where there are so many.
  static constexpr Mask all(std::size_t count) {
    return Mask(count == kMost ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1);
  }

  constexpr bool has(std::size_t number) const { return bits_ >> number & 1; }
  constexpr void add(std::size_t number) { bits_ |= std::uint64_t{1} << number; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr std::uint64_t bits() const { return bits_; }

  friend constexpr Mask operator|(Mask a, Mask b) { return Mask(a.bits_ | b.bits_); }
  friend constexpr Mask operator&(Mask a, Mask b) { return Mask(a.bits_ & b.bits_); }
  constexpr auto operator<=>(const Mask&) const = default;

 private:
  constexpr explicit Mask(std::uint64_t bits) : bits_(bits) {}

  std::uint64_t bits_ = 0;
};

struct PlannedGroup;
// Of a unit's groups, by their positions in PlannedUnit::groups.
using GroupMask = Mask<PlannedGroup>;
struct ParameterSet;
// Of sets, by their positions in ShardPlan::sets.
using SetMask = Mask<ParameterSet>;

}  // namespace floe::shard
