// What does not fit between files of weights and a model, as one short sentence.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace floe::models {

class WeightDefects {
 public:
  using Shape = std::vector<std::int64_t>;

  void missing(const std::string& name, const Shape& shape, const std::string& path);
  void surplus(const std::string& name, const Shape& shape, const std::string& path);
  void misshapen(const std::string& name, const Shape& found, const Shape& expected,
                 const std::string& path);
  // Anything else, as a sentence.
  void other(const std::string& name, const std::string& sentence);

  bool empty() const { return groups_.empty(); }
  // A few are named one by one. Of many of a kind the first ones are, then how many there are in
  // which part of the model: "layers.{1,3}.gated_cross_attn_layer.* (22 tensors)".
  std::string text() const;

 private:
  enum class Kind { misshapen, missing, surplus, other };
  struct Defect {
    std::string name, sentence;
  };
  void add(Kind kind, const std::string& path, Defect defect);

  std::vector<std::pair<std::pair<Kind, std::string>, std::vector<Defect>>>
      groups_;  // as they came
};

// Names in a few patterns for each first segment, with the number of names of each: numbers that
// differ become {1,3} or *, and ends that differ become *.
std::vector<std::pair<std::string, std::size_t>> name_patterns(
    const std::vector<std::string>& names);

}  // namespace floe::models
