// What a rehearsed step would do on a device: work by stream, in the order of issue, and how the
// streams wait for each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "floe/comm/group.h"

namespace floe::plan {

// One thing that is issued to a stream. Stream 0 computes; of the CPU it is the rank's own thread.
struct TraceStep {
  enum class Kind : std::uint8_t {
    product,     // of matrices [m, k] · [k, n], `batch` of them
    attention,   // `flops` of its products, over spans of at most `k` keys
    pass,        // over memory
    host_copy,   // between the device and host memory; of the CPU every copy
    collective,  // between ranks
    record,      // an event takes place when the stream comes here
    block,       // the stream goes on when that event has taken place
  };
  Kind kind = Kind::pass;
  bool backward = false;   // of the pass; also what is recomputed there
  bool flash = false;      // attention by torch's kernel
  std::uint8_t bits = 16;  // of a product's numbers
  int stream = 0;
  int unit = -1;   // of the plan; -1: outside of all
  int event = -1;  // of record and block
  double flops = 0, bytes = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  comm::FakeCollective collective;
  const char* what = "";  // for people
};

// Bytes on the device: of a GPU as its allocator counts them, which rounds to 512, of the CPU as
// they were asked for.
struct TraceMemory {
  std::int64_t before = 0;     // slices, and the inputs of this step and the next
  std::int64_t peak = 0;       // of the step, with `before`
  std::int64_t host_peak = 0;  // of what was moved to host memory
  std::int64_t pool_peak = 0;  // of `peak`, at most: gathered parameters
  std::int64_t gradient_pool_peak = 0;
  // By unit of the plan: what its forward left for backward.
  std::vector<std::int64_t> kept_by_unit;
  std::int64_t kept_outside = 0;  // likewise, of no unit
};

struct Trace {
  std::vector<TraceStep> steps;    // of the pass that ends an update
  std::vector<TraceStep> earlier;  // of one before it, where an update takes several
  int passes = 1;
  TraceMemory memory;
  std::int64_t gradient_numel = 0;  // that this rank updates
  std::int64_t tokens = 0, images = 0;
};

}  // namespace floe::plan
