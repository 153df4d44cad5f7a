// What a peak of memory consists of, and what it points to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace floe::diag {

// Bytes on the device at a peak, by owner. Owners are measured between two boundaries of units, so they
// are those of the moment up to what a single unit does.
struct MemoryPeak {
  std::int64_t bytes = 0;        // all of it
  std::int64_t parameters = 0;   // slices
  std::int64_t optimizer = 0;    // state, and what an update takes beside it
  std::int64_t others = 0;       // also there between steps: averages, buffers, the batch
  std::int64_t gathered = 0;     // whole parameters of units
  std::int64_t gradients = 0;    // slices, and whole ones on their way to a reduction
  std::int64_t logits = 0;       // see Note [What counts as logits]
  std::int64_t activations = 0;  // the rest
  std::string where;             // "the backward of layers.3"
  std::string unit;              // "layers.3"; empty outside of units
  std::int64_t risen = 0;        // since the last boundary of a unit: what is there for a moment

  struct Part {
    std::string_view name;  // as above
    std::int64_t bytes = 0;
  };
  // Largest first.
  std::vector<Part> parts() const;
};

// What is known besides, for advice that fits.
struct PeakContext {
  std::int64_t logits_rows = 0, vocabulary = 0;
  // Class of the units that hold most of the activations; empty: what is outside of them does.
  std::string main_holder;
  bool holder_is_checkpointed = false;
};

// "activations 62%, gathered 20%": the largest parts.
std::string peak_hint(const MemoryPeak& peak);
// The largest part, in words, and what makes it smaller.
std::string peak_advice(const MemoryPeak& peak, const PeakContext& context);

}  // namespace floe::diag
