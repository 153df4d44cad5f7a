// Where two sets of tensors differ.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/io/tensor_source.h"

namespace floe::cli {

struct TensorDiff {
  enum class Kind { only_in_a, only_in_b, shape, type, values };
  std::string name;
  Kind kind = Kind::values;
  std::string a, b;  // type and shape: "fp32 [4, 8]"; empty where there is none
  // Of values, when the shapes agree. A NaN equals a NaN and differs from every number; then the
  // greatest difference is infinite.
  std::int64_t numel = 0, num_differing = 0;
  double max_abs = 0, max_relative = 0;  // |a - b|, and that over the larger of |a| and |b|
};

struct TensorDiffs {
  std::vector<TensorDiff> diffs;  // by name
  std::int64_t num_equal = 0;     // tensors

  bool equal() const { return diffs.empty(); }
};

// Elements whose difference is at most `tolerance` count as equal. Memory is bounded, whatever the
// size of the tensors.
TensorDiffs compare_tensors(const TensorSource& a, const TensorSource& b, double tolerance);

std::string diffs_text(const TensorDiffs& diffs);
nlohmann::ordered_json diffs_json(const TensorDiffs& diffs);

}  // namespace floe::cli
