#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "floe/cli/command.h"
#include "floe/cli/loaded_model.h"
#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/core/str.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/weights/assembled_source.h"
#include "floe/nn/load.h"

namespace floe::cli {
namespace {

// How a tensor differs.
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

// Elements whose difference is at most `tolerance` count as equal. Memory is bounded, whatever the
// size of the tensors.
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

bool is_whole(const Located& located) {
  return located.kind == PathKind::yaml ||
         (located.kind == PathKind::model && is_known_model(located.path));
}

// As whole models, or tensor by tensor. Two exported folders are the latter: they hold everything,
// unless changes say where the rest is.
bool as_models(const Located& a, const Located& b, bool changed) {
  if (!is_whole(a) && !is_whole(b)) return false;
  if (a.kind == PathKind::model && b.kind == PathKind::model && !changed) return false;
  const auto tells = [](const Located& located) {
    return is_whole(located) ||
           (located.kind != PathKind::model && layers_of(located, {}).has_value());
  };
  return tells(a) && tells(b);
}

std::shared_ptr<const TensorSource> open(const Located& located, bool weights) {
  require<ConfigError>(
      located.kind != PathKind::yaml, "diff: '", located.path,
      "' is a model, but the other does not say of which model it is; compare files "
      "of weights");
  const std::string& path = located.kind == PathKind::model ? located.path : located.checkpoint;
  std::shared_ptr<const TensorSource> source = open_tensors(path);
  if (const std::string words = unreadable_in_words(*source); !words.empty())
    log::warn("'", path, "' is not compared as a whole: ", words);
  return weights ? models::unwrapped(source, path) : source;
}

Exit run_diff(const Args& args) {
  const Options options(kDiffCommand, args);
  const Words words = split_words(options.words());
  require<ConfigError>(words.paths.size() == 2, "diff: name two things to compare: floe diff A B");
  const double tolerance = options.number("--tolerance", 0);
  require<ConfigError>(tolerance >= 0, "diff: --tolerance is ", tolerance,
                       ", but must be a number from 0");
  const Located a = locate("diff", words.paths[0], Wanted::weights),
                b = locate("diff", words.paths[1], Wanted::weights);
  const bool models = as_models(a, b, !words.changes.empty());
  const bool configured = a.kind == PathKind::yaml || b.kind == PathKind::yaml;
  require<ConfigError>(models || words.changes.empty(), "diff: '",
                       words.changes.empty() ? "" : words.changes[0],
                       "' has no effect: tensors are compared as they are");
  const bool weights =
      options.has("--weights") || a.kind == PathKind::run || b.kind == PathKind::run;
  const auto side = [&](const Located& located) {
    if (!models) return open(located, weights);
    const bool changes = !configured || located.kind == PathKind::yaml;
    return model_tensors(require_model("diff", located, changes ? words.changes : Args{}));
  };
  const auto first = side(a), second = side(b);
  log_choice(a);
  log_choice(b);
  const TensorDiffs diffs = compare_tensors(*first, *second, tolerance);
  std::cout << (options.has("--json") ? diffs_json(diffs).dump(2) + "\n" : diffs_text(diffs));
  return diffs.equal() ? Exit::done : Exit::failed;
}

}  // namespace

const Command kDiffCommand{
    .name = "diff",
    .summary = "where two runs, checkpoints or models differ",
    .about = R"(usage: floe diff A B [key=value] [options]

Where the tensors of A and B differ: those that only one has, shapes, types, and values, with the number
of elements that differ and the greatest difference. A and B may be of different kinds: run folders (their
newest checkpoint), checkpoints, files of torch.save or safetensors, exported folders, and YAMLs with a
model. What is no tensor is not compared.

Two checkpoints are compared with all their tensors. A run stands for the weights of its newest checkpoint.
Where one is a whole model (an exported folder, a YAML) and the other says of which model it is, both are
compared as whole models: what a checkpoint does not hold comes from the files of its run.

Ends with 0 when they are equal, with 1 when they differ.
)",
    .options =
        {
            {"--tolerance", "X", "elements that differ by at most X count as equal (0)"},
            {"--weights", "",
             "only the weights of training states, without the prefixes of trainers"},
            {"--json", "", "one object: equal, num_equal, differences"},
            {"key=value", "",
             "changes the model of a YAML (also ++key=value, ~key), or of both where neither is "
             "one: where the files of a run have moved, model.lm=PATH says where they are"},
        },
    .closing = R"(  floe diff runs/a runs/b
  floe diff runs/a/checkpoints/step_100 exported --tolerance 1e-6
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_diff,
};

}  // namespace floe::cli
