// Where weights come from: name -> shape, dtype and the byte ranges that hold the elements.
//
// A rank asks for the elements it owns and only their bytes are read, so loading a model of any
// size needs the memory of one shard.
//
//   auto source = open_tensors("opt-1.3b");
//   const TensorInfo* info = source->find("model.decoder.embed_tokens.weight");
//   source->read(*info, first, count, out);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/dtype.h"

namespace floe {

class File;

struct ByteRange {
  std::string file;
  std::int64_t offset = 0, length = 0;
};

struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;
  // The elements in row-major order; their lengths add up to bytes(). None when the elements do not
  // lie in that order (a strided view in a torch file): then only read() of the source finds them.
  std::vector<ByteRange> ranges;

  std::int64_t numel() const;
  std::int64_t bytes() const;
};

// Threads: all const members may be called from any thread.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Sorted, without duplicates.
  virtual std::vector<std::string> names() const = 0;
  // Null when there is no such tensor; else valid as long as the source.
  virtual const TensorInfo* find(const std::string& name) const = 0;
  // Elements [first_element, first_element + count) in row-major order. `out` must have exactly
  // their bytes; no other byte of any file is read, except between the elements of strided views.
  virtual void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                    std::span<std::byte> out) const;
  // Bytes of tensor data (headers do not count) read so far.
  virtual std::uint64_t bytes_read() const { return bytes_read_; }

  // find(), or a DataError with the nearest names.
  const TensorInfo& get(const std::string& name) const;

 protected:
  // Reads of this file go through a handle that is open already.
  void keep_open(std::shared_ptr<const File> file);
  // For overrides of read(): throws DataError unless the elements exist and `out` has their size.
  static void check_request(const TensorInfo& tensor, std::int64_t first_element,
                            std::int64_t count, std::span<const std::byte> out);
  // Reads and counts the first out.size() bytes of the range.
  void read_range(const ByteRange& range, std::span<std::byte> out) const;

 private:
  std::shared_ptr<const File> open(const std::string& path) const;

  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const File>> files_;
  mutable std::atomic<std::uint64_t> bytes_read_{0};
};

// For names(): the keys, which are tensor names.
template <class Item>
std::vector<std::string> names_in(const std::map<std::string, Item>& by_name) {
  std::vector<std::string> names;
  names.reserve(by_name.size());
  for (const auto& [name, item] : by_name) names.push_back(name);
  return names;
}

// ---- other views of weights: under other names, a part of them, or several files as one ----

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
