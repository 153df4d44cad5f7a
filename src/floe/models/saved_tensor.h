// How the tensors of a file are made from a model's parameters: the other way of AssembledSource.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensor_source.h"
#include "floe/nn/module.h"

namespace floe::models {

// Elements [first, first + count) of a parameter, row-major.
struct SavedRun {
  std::string parameter;
  std::int64_t first = 0, count = 0;
};

// A low-rank product that is added to a weight as it is written.
struct SavedAdapter {
  std::string a, b;  // [rank, in] and [out, rank]
  std::int64_t rank = 0;
  double scale = 1;
};

struct SavedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<SavedRun> runs;           // one after the other
  bool transposed = false;              // the parameter is a matrix that lies the other way round
  std::optional<SavedAdapter> adapter;  // only with a single run
  // Further names of the same tensor: those that every file has (a tied head), and those that are only
  // written where they cost no bytes.
  std::vector<std::string> copies, second_names;

  std::int64_t numel() const;
  // All that it is made of, once each.
  std::vector<std::string> parameters() const;
};

// Gives a parameter by its name, whole, on any device. Collective where it is (under an engine it is
// Engine::full_parameter): all ranks then save the same tensors in the same order.
using WholeParameter = std::function<at::Tensor(const std::string& name)>;

// Of a model in one piece.
WholeParameter whole_parameters(nn::Module& model);

// Gives tensors in pieces. Between calls it keeps the parameters of the last tensor, which the next
// one may share; beyond these it needs a bounded buffer.
//
// When `whole` is empty the parameters come from `source`, which must have them all, in pieces as
// well: then the buffer is all the memory there is (and adapters, and tensors that are transposed).
class SavedTensorReader {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  explicit SavedTensorReader(WholeParameter whole, const TensorSource* source = nullptr)
      : whole_(std::move(whole)), source_(source) {}
  // Collective where `whole` is. An empty sink takes part and drops the bytes.
  void read(const SavedTensor& tensor, DType dtype, const Sink& sink);

 private:
  void hold(const SavedTensor& tensor);
  at::Tensor elements(const std::string& parameter, std::int64_t first, std::int64_t count) const;
  void give_adapted(const SavedTensor& tensor, DType dtype, const Sink& sink) const;

  WholeParameter whole_;
  const TensorSource* source_;
  std::map<std::string, at::Tensor> held_;  // flattened
};

}  // namespace floe::models
