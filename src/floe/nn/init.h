// Initial values of parameters, by a counter-based generator.
//
// Note [Initial values]
// Element i of a parameter is a function of (seed, the parameter's name, i) and of nothing else. A
// rank fills only the elements it owns, in any order, and every world size starts from the same
// numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace floe::nn {

struct Init {
  enum class Kind { constant, normal, uniform };
  Kind kind = Kind::constant;
  double a = 0;  // constant: the value; normal: mean; uniform: from
  double b = 0;  // normal: standard deviation; uniform: to

  static Init zeros() { return {Kind::constant, 0, 0}; }
  static Init ones() { return {Kind::constant, 1, 0}; }
  static Init constant(double value) { return {Kind::constant, value, 0}; }
  static Init normal(double deviation, double mean = 0) { return {Kind::normal, mean, deviation}; }
  static Init uniform(double from, double to) { return {Kind::uniform, from, to}; }
  // torch::nn::Linear's own: uniform in ±1/sqrt(fan_in).
  static Init fan_in(std::int64_t fan_in);
};

// Writes elements [first, first + out.numel()) of the parameter into `out`: a contiguous
// one-dimensional floating-point tensor of any dtype on any device.
void fill(const Init& init, std::uint64_t seed, const std::string& parameter, std::int64_t first,
          const at::Tensor& out);

}  // namespace floe::nn
