#include "floe/eval/tasks/draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "floe/core/error.h"

namespace floe::eval {
namespace {

std::vector<std::size_t> counted_up(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

// NumPy's random_interval: as many low bits as `most` has, until they are not above it.
std::size_t numpy_at_most(data::Mt19937& random, std::size_t most) {
  if (most == 0) return 0;
  std::uint32_t mask = static_cast<std::uint32_t>(most);
  for (const int shift : {1, 2, 4, 8, 16}) mask |= mask >> shift;
  while (true)
    if (const std::uint32_t value = random.next() & mask; value <= most) return value;
}

}  // namespace

std::vector<std::size_t> numpy_permutation(data::Mt19937& random, std::size_t count) {
  require<ConfigError>(count < (std::size_t{1} << 32), "cannot draw from ", count, " samples");
  std::vector<std::size_t> order = counted_up(count);
  for (std::size_t i = count; i-- > 1;) std::swap(order[i], order[numpy_at_most(random, i)]);
  return order;
}

std::vector<std::size_t> torch_permutation(std::uint64_t seed, std::size_t count) {
  data::Mt19937 random(static_cast<std::uint32_t>(seed));
  std::vector<std::size_t> order = counted_up(count);
  for (std::size_t i = 0; i + 1 < count; ++i)
    std::swap(order[i], order[i + random.next() % (count - i)]);
  return order;
}

std::vector<std::size_t> python_sample(data::PythonRandom& random, std::size_t count,
                                       std::size_t taken) {
  require(taken <= count, "cannot take ", taken, " of ", count, " samples");
  // Python keeps a list of what is left where that is smaller than a set of what was taken.
  double set_size = 21;
  if (taken > 5)
    set_size += std::pow(4, std::ceil(std::log(static_cast<double>(taken) * 3) / std::log(4.0)));
  std::vector<std::size_t> sample;
  if (static_cast<double>(count) <= set_size) {
    std::vector<std::size_t> pool = counted_up(count);
    for (std::size_t i = 0; i < taken; ++i) {
      const std::size_t j = random.below(count - i);
      sample.push_back(std::exchange(pool[j], pool[count - i - 1]));
    }
    return sample;
  }
  std::set<std::size_t> seen;
  while (sample.size() < taken)
    if (const std::size_t j = random.below(count); seen.insert(j).second) sample.push_back(j);
  return sample;
}

TrialDraw draw_trial(const DrawOptions& options) {
  data::Mt19937 numpy(static_cast<std::uint32_t>(options.seed));
  std::vector<std::size_t> tests = numpy_permutation(numpy, options.tests);
  if (options.asked > 0) tests.resize(std::min(options.asked, tests.size()));
  TrialDraw draw;
  for (const std::size_t place : torch_permutation(0, tests.size()))
    draw.asked.push_back(tests[place]);
  draw.context.resize(draw.asked.size());
  if (options.query_set == 0 || options.context == 0) return draw;

  std::vector<std::size_t> query_set = numpy_permutation(numpy, options.train);
  query_set.resize(std::min(options.query_set, query_set.size()));
  require<ConfigError>(options.context <= query_set.size(), "a context of ", options.context,
                       " samples cannot be drawn from ", query_set.size(),
                       "; ask for fewer shots, or give more training samples");
  data::PythonRandom python(options.seed);
  for (auto& context : draw.context)
    for (const std::size_t place : python_sample(python, query_set.size(), options.context))
      context.push_back(query_set[place]);
  return draw;
}

}  // namespace floe::eval
