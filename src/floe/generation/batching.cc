#include "floe/generation/batching.h"

#include <algorithm>
#include <numeric>

namespace floe::generation {

std::vector<std::vector<std::size_t>> make_batches(const std::vector<RequestSize>& requests,
                                                   std::int64_t batch_tokens) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return requests[a].length > requests[b].length;
  });
  std::vector<std::vector<std::size_t>> batches;
  RequestSize batch;
  for (const std::size_t r : order) {
    const RequestSize& request = requests[r];
    RequestSize with = batch;
    with.sequences += request.sequences;
    with.images += request.images;
    if (batches.empty() || with.tokens() > batch_tokens) {
      batches.emplace_back();
      batch = request;
    } else {
      batch = with;
    }
    batches.back().push_back(r);
  }
  return batches;
}

}  // namespace floe::generation
