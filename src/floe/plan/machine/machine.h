// A machine as the plan sees it: what a GPU, or the cores of a machine that has none, computes and
// moves in a second, and what lies between the ranks.
//
// Note [Machine]
// `tflops` is what large products really reach, not what a vendor prints; shapes that fill the
// GPU badly get less (tiles and waves). `memory_gbs` counts bytes read and written by kernels that
// do little else. `intra_gbs` is stated as vendors do, both directions together, `inter_gbs` in one
// direction for each GPU's share of the network; `intra_share` and `inter_share` are what
// collectives reach of a direction.
//
// Note [Machine of cores]
// With `device: cpu` ranks compute on the cores of their node, which they share: the rates are
// those of all cores together, while all are busy. One core alone reaches `core_share` of the
// products' rate and `core_memory_share` of the memory's; between one and all it is a line. A rank
// has as many threads as `floe launch` gives it: its part of the cores, at least one.
// `gpus_per_node` are the ranks of a node, and `memory` is the node's. While a collective is under
// way, threads of Gloo take `collective_cores` of each rank.
#pragma once

#include <cstdint>
#include <string>

#include "floe/schema/codec.h"
#include "floe/schema/schema.h"

namespace floe::plan {

struct Machine {
  std::string name;
  std::string device = "gpu";  // or "cpu"
  config::ByteSize memory;     // of a GPU; of a machine of cores
  config::ByteSize context;    // that is gone before anything is allocated
  double slack = 0;            // share of what is allocated that the allocator cannot use
  double bf16_tflops = 0, fp32_tflops = 0;
  double fp8_tflops = 0;        // 0: it has no such products
  double attention_tflops = 0;  // of floe's own kernel, which short spans take
  double flash_tflops = 0;      // of torch's, which long ones take: of very long ones ...
  double flash_half = 0;        // ... and half of that with so many keys
  std::int64_t processors = 1;  // that work side by side on the tiles of a product
  double memory_gbs = 0;
  double update_gbs = 0;  // of the optimizer's pass over slices, gradients and state
  double host_gbs = 0;    // to host memory and back, one direction
  double kernel_us = 0;   // from one kernel to the next
  double issue_us = 0;    // of the host, for each kernel
  double step_ms = 0;     // of the host, once a step: agreement, batch, metrics
  std::int64_t gpus_per_node = 8;
  double intra_gbs = 0, inter_gbs = 0;
  double intra_share = 1, inter_share = 1;
  double intra_us = 0, inter_us = 0;  // from one rank to the next

  // Of a machine of cores alone.
  std::int64_t cores = 1;
  double core_share = 1, core_memory_share = 1;
  double product_half = 0;  // a product whose smallest side is this reaches half of the rate
  double collective_cores = 1;
  double reduce_gbs = 1;  // that a rank sums in reductions, beside what they move

  bool of_cores() const { return device == "cpu"; }
};
void describe(config::Schema<Machine>& s);

// "h200", "h100", "a100", "cpu", or a YAML or JSON file of such a description, in which `like` may
// name one of these that gives what is left out. Throws ConfigError, with `what` it is in front.
Machine find_machine(const std::string& name_or_file, const std::string& what = "--gpu");

// The machine of a GPU that calls itself so. Of one that is not known the rates are those of the
// nearest that is: what counts for a choice is how they compare.
Machine machine_of_gpu(const std::string& gpu, bool has_fp8_products);

// What one rank has of the cores of a host that nobody has measured, as if it were a GPU of its
// own. Orders of magnitude of cores and loopback, so that a choice moves few bytes and recomputes
// only for memory; of a measured host see Note [Machine of cores].
Machine machine_of_rank_on_cores(double cores);

// Throws ConfigError, with `what` in front, unless a known machine of such a device has this name.
void check_like(const std::string& what, const std::string& name, const std::string& device);

// "900GB/s", "400Gb/s", "3.2TB/s": decimal GB in a second. Throws ConfigError with `what` in front.
double parse_rate(const std::string& what, const std::string& text);

}  // namespace floe::plan
