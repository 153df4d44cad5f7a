// Which samples a trial asks, and which it shows before each: the draws of OpenFlamingo's
// evaluation, number for number.
//
// Note [Draws of a trial]
// With NumPy's generator of the trial's seed a permutation of the test set is drawn, whose first
// elements are asked, and then one of the training set, whose first elements are the query set. A
// DistributedSampler brings what is asked into another order, always that of torch's generator with
// seed 0. In this order Python's random.sample with the trial's seed takes the context of one
// sample after the other from the query set. OpenFlamingo on several ranks gives every rank a seed
// of its own, and so other contexts; the draws here are those of one rank, on any number of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "floe/data/python/random.h"

namespace floe::eval {

// numpy.random.RandomState(seed).permutation(count), from a generator that goes on.
std::vector<std::size_t> numpy_permutation(data::Mt19937& random, std::size_t count);
// torch.randperm(count) with this seed, for counts below 2^32 / 20.
std::vector<std::size_t> torch_permutation(std::uint64_t seed, std::size_t count);
// random.sample(range(count), taken); taken must not be above count.
std::vector<std::size_t> python_sample(data::PythonRandom& random, std::size_t count,
                                       std::size_t taken);

struct DrawOptions {
  std::uint64_t seed = 42;    // below 2^32
  std::size_t tests = 0;      // samples of the test set
  std::size_t asked = 0;      // how many of them are asked; 0: all
  std::size_t train = 0;      // samples of the training set
  std::size_t query_set = 0;  // how many of them contexts are drawn from; 0: no draws
  std::size_t context = 0;    // samples shown before each
};

struct TrialDraw {
  std::vector<std::size_t> asked;                 // of the test set, in the order of the draws
  std::vector<std::vector<std::size_t>> context;  // of the training set, for each that is asked
};

// Where there are fewer samples than are wanted all are taken. Throws ConfigError when a context
// needs more samples than there are.
TrialDraw draw_trial(const DrawOptions& options);

}  // namespace floe::eval
