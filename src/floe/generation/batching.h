// Which requests are computed together, so that no batch holds more than a budget allows.
//
// Note [Token budget]
// What a batch holds grows with the cache of keys and values: a place for every token of the
// longest of its sequences, for each of them. A batch costs (number of sequences) × (longest
// length) and kTokensOfImage for every image, which stands for the tokens of the image tower and
// for keys and values of what the resampler makes of them. Requests of similar length share a
// batch, so that little of that is empty. A request that is above the budget by itself is computed
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace floe::generation {

inline constexpr std::int64_t kTokensOfImage = 256;
inline constexpr std::int64_t kBatchTokens = 16'384;  // the default budget

// What a request needs while it is computed.
struct RequestSize {
  std::int64_t sequences = 1;  // beams, samples or candidates
  std::int64_t length = 0;     // of the longest of them: prompt and what may follow
  std::int64_t images = 0;

  std::int64_t tokens() const { return sequences * length + images * kTokensOfImage; }
};

// Numbers of requests, batch by batch, longest first: a budget that is too large fails early.
std::vector<std::vector<std::size_t>> make_batches(const std::vector<RequestSize>& requests,
                                                   std::int64_t batch_tokens);

}  // namespace floe::generation
