#include "floe/cli/tensor_diff.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "floe/core/str.h"
#include "floe/nn/load.h"

namespace floe::cli {
namespace {

constexpr std::int64_t kStep = std::int64_t{1} << 20;  // elements

std::string described(const TensorInfo& info) {
  return str(name_of(info.dtype), " [", join(info.shape), "]");
}

at::Tensor elements(const TensorSource& source, const TensorInfo& info, std::int64_t first,
                    std::int64_t count) {
  at::Tensor out = at::empty({count}, at::TensorOptions().dtype(nn::torch_dtype(info.dtype)));
  nn::read_elements(source, info, first, out);
  return out;
}

void compare_piece(const at::Tensor& a, const at::Tensor& b, double tolerance, TensorDiff& diff) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  // Large integers are not exact as doubles, so those of one type are compared as they are.
  const bool exact = a.scalar_type() == b.scalar_type() && !at::isFloatingType(a.scalar_type());
  at::Tensor same = exact ? a.eq(b) : x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
  at::Tensor apart = (x - y).abs().masked_fill(same, 0);
  apart = apart.masked_fill(apart.isnan(), std::numeric_limits<double>::infinity());
  const at::Tensor differ =
      apart.gt(tolerance).logical_or(tolerance > 0 ? at::zeros_like(same) : same.logical_not());
  const std::int64_t count = differ.sum().item<std::int64_t>();
  if (count == 0) return;
  diff.num_differing += count;
  diff.max_abs = std::max(diff.max_abs, apart.max().item<double>());
  const at::Tensor relative = (apart / at::maximum(x.abs(), y.abs()))
                                  .masked_fill(apart.eq(0), 0)
                                  .nan_to_num(std::numeric_limits<double>::infinity(),
                                              std::numeric_limits<double>::infinity());
  diff.max_relative = std::max(diff.max_relative, relative.max().item<double>());
}

// True when there is a difference.
bool compare(const TensorSource& a, const TensorSource& b, double tolerance, TensorDiff& diff) {
  const TensorInfo &of_a = a.get(diff.name), &of_b = b.get(diff.name);
  diff.a = described(of_a);
  diff.b = described(of_b);
  diff.numel = of_a.numel();
  if (of_a.shape != of_b.shape) {
    diff.kind = TensorDiff::Kind::shape;
    return true;
  }
  for (std::int64_t first = 0; first < diff.numel; first += kStep) {
    const std::int64_t count = std::min(kStep, diff.numel - first);
    compare_piece(elements(a, of_a, first, count), elements(b, of_b, first, count), tolerance,
                  diff);
  }
  if (of_a.dtype != of_b.dtype) diff.kind = TensorDiff::Kind::type;
  return of_a.dtype != of_b.dtype || diff.num_differing > 0;
}

std::string values_text(const TensorDiff& diff) {
  return str(diff.num_differing, " of ", diff.numel, " elements differ, by at most ", diff.max_abs,
             " (relative ", diff.max_relative, ")");
}

std::string line_of(const TensorDiff& diff) {
  using Kind = TensorDiff::Kind;
  switch (diff.kind) {
    case Kind::only_in_a: return str("only in A  ", diff.name, "  ", diff.a);
    case Kind::only_in_b: return str("only in B  ", diff.name, "  ", diff.b);
    case Kind::shape: return str("shape      ", diff.name, "  ", diff.a, " and ", diff.b);
    case Kind::type:
      return str("type       ", diff.name, "  ", diff.a, " and ", diff.b, "; ", values_text(diff));
    case Kind::values: break;
  }
  return str("values     ", diff.name, "  ", diff.a, "; ", values_text(diff));
}

std::string_view kind_name(TensorDiff::Kind kind) {
  switch (kind) {
    case TensorDiff::Kind::only_in_a: return "only_in_a";
    case TensorDiff::Kind::only_in_b: return "only_in_b";
    case TensorDiff::Kind::shape: return "shape";
    case TensorDiff::Kind::type: return "type";
    case TensorDiff::Kind::values: break;
  }
  return "values";
}

}  // namespace

TensorDiffs compare_tensors(const TensorSource& a, const TensorSource& b, double tolerance) {
  TensorDiffs result;
  const auto names_a = a.names(), names_b = b.names();
  const std::set<std::string> in_a(names_a.begin(), names_a.end());
  const std::set<std::string> in_b(names_b.begin(), names_b.end());
  std::set<std::string> all = in_a;
  all.insert(in_b.begin(), in_b.end());
  for (const std::string& name : all) {
    TensorDiff diff{.name = name};
    if (!in_b.contains(name)) {
      diff.kind = TensorDiff::Kind::only_in_a;
      diff.a = described(a.get(name));
    } else if (!in_a.contains(name)) {
      diff.kind = TensorDiff::Kind::only_in_b;
      diff.b = described(b.get(name));
    } else if (!compare(a, b, tolerance, diff)) {
      ++result.num_equal;
      continue;
    }
    result.diffs.push_back(std::move(diff));
  }
  return result;
}

std::string diffs_text(const TensorDiffs& diffs) {
  std::ostringstream out;
  for (const TensorDiff& diff : diffs.diffs) out << line_of(diff) << "\n";
  out << diffs.num_equal << " tensors are equal, " << diffs.diffs.size() << " differ\n";
  return out.str();
}

nlohmann::ordered_json diffs_json(const TensorDiffs& diffs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TensorDiff& diff : diffs.diffs) {
    nlohmann::ordered_json entry{{"name", diff.name}, {"kind", kind_name(diff.kind)}};
    if (!diff.a.empty()) entry["a"] = diff.a;
    if (!diff.b.empty()) entry["b"] = diff.b;
    if (diff.kind == TensorDiff::Kind::type || diff.kind == TensorDiff::Kind::values) {
      entry["numel"] = diff.numel;
      entry["num_differing"] = diff.num_differing;
      // JSON has no infinity: null.
      entry["max_abs"] = diff.max_abs;
      entry["max_relative"] = diff.max_relative;
    }
    list.push_back(std::move(entry));
  }
  return {{"equal", diffs.equal()}, {"num_equal", diffs.num_equal}, {"differences", list}};
}

}  // namespace floe::cli
