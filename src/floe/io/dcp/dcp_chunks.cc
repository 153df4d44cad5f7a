#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"

namespace floe {
namespace {

using Sizes = std::vector<std::int64_t>;

std::string text_of(const DcpChunk& chunk) {
  return str("the chunk at [", join(chunk.offsets), "] of size [", join(chunk.sizes), "]");
}

bool lies_inside(const DcpChunk& chunk, const Sizes& shape) {
  if (chunk.offsets.size() != shape.size() || chunk.sizes.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (chunk.offsets[d] > shape[d] || chunk.sizes[d] > shape[d] - chunk.offsets[d]) return false;
  return true;
}

bool overlap(const DcpChunk& a, const DcpChunk& b) {
  for (std::size_t d = 0; d < a.sizes.size(); ++d)
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d])
      return false;
  return true;
}

// The dimension in which chunks begin at most places: along it few are neighbours.
std::size_t most_cut_dimension(std::size_t num_dimensions, const std::vector<DcpChunk>& chunks) {
  std::size_t best = 0, most = 0;
  for (std::size_t d = 0; d < num_dimensions; ++d) {
    std::set<std::int64_t> begins;
    for (const DcpChunk& chunk : chunks) begins.insert(chunk.offsets[d]);
    if (begins.size() > most) {
      most = begins.size();
      best = d;
    }
  }
  return best;
}

// Compares only chunks that meet along one dimension: thousands of shards along dim 0 cost a sort.
std::string overlap_problem(std::size_t num_dimensions, const std::vector<DcpChunk>& chunks) {
  if (num_dimensions == 0)
    return chunks.size() > 1 ? "has several chunks, although it has no dimensions" : "";
  const std::size_t along = most_cut_dimension(num_dimensions, chunks);
  std::vector<const DcpChunk*> order;
  order.reserve(chunks.size());
  for (const DcpChunk& chunk : chunks) order.push_back(&chunk);
  std::sort(order.begin(), order.end(), [along](const DcpChunk* a, const DcpChunk* b) {
    return a->offsets[along] < b->offsets[along];
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t end = order[i]->offsets[along] + order[i]->sizes[along];
    for (std::size_t j = i + 1; j < order.size() && order[j]->offsets[along] < end; ++j)
      if (overlap(*order[i], *order[j]))
        return str("has chunks that overlap: ", text_of(*order[i]), " and ", text_of(*order[j]));
  }
  return "";
}

// From this dimension on the chunk is as wide as the tensor, but for the first of them: one run.
std::size_t run_dimension(const DcpChunk& chunk, const Sizes& shape) {
  std::size_t d = shape.size();
  while (d > 0 && chunk.sizes[d - 1] == shape[d - 1]) --d;
  return d == 0 ? 0 : d - 1;
}

// Adds the run [first, end) of the tensor below dimension `depth`; `at` is the way to it.
void add_runs(const Sizes& shape, std::size_t depth, std::int64_t first, std::int64_t end,
              std::vector<std::int64_t>& at, std::vector<Rectangle>& out) {
  if (first == end) return;
  std::int64_t row = 1;  // elements of one step in this dimension
  for (std::size_t d = depth + 1; d < shape.size(); ++d) row *= shape[d];
  const auto add_rows = [&](std::int64_t begin, std::int64_t rows) {
    Rectangle box{at, std::vector<std::int64_t>(at.size(), 1)};
    box.offsets.push_back(begin);
    box.sizes.push_back(rows);
    for (std::size_t d = depth + 1; d < shape.size(); ++d) {
      box.offsets.push_back(0);
      box.sizes.push_back(shape[d]);
    }
    out.push_back(std::move(box));
  };
  const auto add_part = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    at.push_back(index);
    add_runs(shape, depth + 1, from, to, at, out);
    at.pop_back();
  };
  const std::int64_t whole = (first + row - 1) / row;  // the first row that is all in
  const std::int64_t last = end / row;                 // the first one that is not
  if (first % row != 0) add_part(first / row, first % row, std::min(end - first / row * row, row));
  if (last > whole) add_rows(whole, last - whole);
  if (end % row != 0 && last >= whole) add_part(last, 0, end % row);
}

}  // namespace

std::int64_t Rectangle::numel() const {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  return numel;
}

std::vector<Rectangle> rectangles_of(const Sizes& shape, std::int64_t first, std::int64_t count) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  require(first >= 0 && count >= 0 && count <= numel - first, "elements ", first, " to ",
          first + count, " are not all in a tensor of shape [", join(shape), "]");
  if (count == 0) return {};
  if (shape.empty()) return {Rectangle{}};
  std::vector<Rectangle> boxes;
  std::vector<std::int64_t> at;
  add_runs(shape, 0, first, first + count, at, boxes);
  return boxes;
}

std::int64_t DcpChunk::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

std::string tidy_chunks(const Sizes& shape, std::vector<DcpChunk>& chunks) {
  for (const DcpChunk& chunk : chunks)
    if (!lies_inside(chunk, shape))
      return str("has shape [", join(shape), "], but ", text_of(chunk), " lies outside of it");
  std::erase_if(chunks, [](const DcpChunk& chunk) { return chunk.numel() == 0; });
  std::stable_sort(chunks.begin(), chunks.end(), [](const DcpChunk& a, const DcpChunk& b) {
    return std::tie(a.offsets, a.sizes) < std::tie(b.offsets, b.sizes);
  });
  const auto replicas = std::unique(chunks.begin(), chunks.end(), [](const auto& a, const auto& b) {
    return a.offsets == b.offsets && a.sizes == b.sizes;
  });
  chunks.erase(replicas, chunks.end());

  std::string problem = overlap_problem(shape.size(), chunks);
  if (!problem.empty()) return problem;
  std::int64_t covered = 0, numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  for (const DcpChunk& chunk : chunks) covered += chunk.numel();
  if (covered != numel)
    return str("has shape [", join(shape), "], which is ", numel, " elements, but its ",
               chunks.size(), " chunks hold only ", covered,
               " of them: a rank's part was not saved");
  return "";
}

std::int64_t elements_before(const DcpChunk& chunk, const Sizes& shape, std::int64_t element) {
  std::int64_t below = 1, inside = chunk.numel(), before = 0;  // elements per step of a dimension
  for (const std::int64_t size : shape) below *= size;
  if (element >= below) return inside;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    below /= shape[d];
    inside /= chunk.sizes[d];
    const std::int64_t place = element / below - chunk.offsets[d];
    element %= below;
    if (place < 0) return before;
    if (place >= chunk.sizes[d]) return before + chunk.sizes[d] * inside;
    before += place * inside;
  }
  return before;
}

std::int64_t place_in_tensor(const DcpChunk& chunk, const Sizes& shape, std::int64_t element) {
  std::int64_t place = 0, stride = 1;
  for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d], element /= chunk.sizes[d])
    place += (chunk.offsets[d] + element % chunk.sizes[d]) * stride;
  return place;
}

void for_each_run(const DcpChunk& chunk, const Sizes& shape, std::int64_t first, std::int64_t count,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& visit) {
  std::int64_t run = 1;
  for (std::size_t d = run_dimension(chunk, shape); d < shape.size(); ++d) run *= chunk.sizes[d];
  for (std::int64_t length = 0; count > 0; first += length, count -= length) {
    length = std::min(run - first % run, count);
    visit(first, place_in_tensor(chunk, shape, first), length);
  }
}

}  // namespace floe
