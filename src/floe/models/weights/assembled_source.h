// Weights put together from pieces: a parameter may be rows of a table in a file, several tensors
// one after the other, or partly new.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "floe/io/tensors/tensor_source.h"
#include "floe/nn/init.h"

namespace floe::models {

// A run of elements: of a tensor in a file, or generated (see Note [Initial values]).
struct WeightPiece {
  std::shared_ptr<const TensorSource> source;  // null: generated
  const TensorInfo* tensor = nullptr;
  nn::Init init;
  std::string seed_name;  // generated: the parameter whose elements these are
  std::int64_t first = 0, count = 0;
};

class AssembledSource : public TensorSource {
 public:
  explicit AssembledSource(std::uint64_t seed) : seed_(seed) {}

  // Pieces in a file must have the parameter's dtype; their counts add up to the shape.
  void add(const std::string& name, std::vector<std::int64_t> shape, DType dtype,
           std::vector<WeightPiece> pieces);
  // A matrix that lies transposed in its file. Read whole when any of it is asked for.
  void add_transposed(const std::string& name, std::shared_ptr<const TensorSource> source,
                      const TensorInfo& tensor);

  std::vector<std::string> names() const override;
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override;

  // The names all of whose elements are read from these files.
  std::set<std::string> names_from(const std::set<const TensorSource*>& files) const;

 private:
  struct Entry {
    TensorInfo info;
    std::vector<WeightPiece> pieces;
    bool transposed = false;
  };

  std::uint64_t seed_;
  std::map<std::string, Entry> entries_;
};

// Weights under their own names, whatever a trainer wrapped around them: the part of a training
// state that they lie in (training_state.h; `state_dict.model.` of Lightning), `module.` of data
// parallelism, and the marks that FSDP, activation checkpointing and compilation leave in names.

// What lies beside the state dict of a checkpoint (the optimizer's moments) is left out. Throws
// DataError, naming `path`, when two tensors come to have one name.
std::shared_ptr<const TensorSource> unwrapped(std::shared_ptr<const TensorSource> source,
                                              const std::string& path);

}  // namespace floe::models
