// Other views of weights: under other names, a part of them, or several files as one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "floe/io/tensor_source.h"

namespace floe {

using Renames = std::map<std::string, std::string>;  // new name -> name in the source

// The tensors of `names`, and only these; two new names may share one tensor.
//
//   RenamedSource lm(checkpoint, names_below(*checkpoint, "model_state_dict.module."));
class RenamedSource : public TensorSource {
 public:
  // Throws DataError, with near names, when the source lacks one.
  RenamedSource(std::shared_ptr<const TensorSource> source, const Renames& names);

  std::vector<std::string> names() const override { return names_in(tensors_); }
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override { return source_->bytes_read(); }

 private:
  struct Tensor {
    TensorInfo info;  // with the new name
    const TensorInfo* original;
  };

  std::shared_ptr<const TensorSource> source_;
  std::map<std::string, Tensor> tensors_;
};

// All names that begin with the prefix, without it.
Renames names_below(const TensorSource& source, std::string_view prefix);

// Everything of several sources; where two have a name, the first wins.
class MergedSource : public TensorSource {
 public:
  explicit MergedSource(std::vector<std::shared_ptr<const TensorSource>> sources);

  std::vector<std::string> names() const override { return names_in(owner_); }
  const TensorInfo* find(const std::string& name) const override;
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;
  std::uint64_t bytes_read() const override;

 private:
  std::vector<std::shared_ptr<const TensorSource>> sources_;
  std::map<std::string, const TensorSource*> owner_;  // by tensor
};

}  // namespace floe
