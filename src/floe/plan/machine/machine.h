// A machine as the plan sees it: what a GPU computes and moves in a second, and what lies between
// the GPUs.
//
// Note [Machine]
// `tflops` is what large products really reach, not what a vendor prints; shapes that fill the
// GPU badly get less (tiles and waves). `memory_gbs` counts bytes read and written by kernels that
// do little else. `intra_gbs` is stated as vendors do, both directions together, `inter_gbs` in one
// direction for each GPU's share of the network; `intra_share` and `inter_share` are what
// collectives reach of a direction.
#pragma once

#include <cstdint>
#include <string>

#include "floe/schema/codec.h"
#include "floe/schema/schema.h"

namespace floe::plan {

struct Machine {
  std::string name;
  config::ByteSize memory;   // of a GPU
  config::ByteSize context;  // that is gone before anything is allocated
  double slack = 0;          // share of what is allocated that the allocator cannot use
  double bf16_tflops = 0, fp8_tflops = 0, fp32_tflops = 0;
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
};
void describe(config::Schema<Machine>& s);

// "h200", "h100", "a100", or a YAML or JSON file of such a description, in which `like` may name
// one of these that gives what is left out. Throws ConfigError, with `what` it is in front.
Machine find_machine(const std::string& name_or_file, const std::string& what = "--gpu");

// "900GB/s", "400Gb/s", "3.2TB/s": decimal GB in a second. Throws ConfigError with `what` in front.
double parse_rate(const std::string& what, const std::string& text);

}  // namespace floe::plan
