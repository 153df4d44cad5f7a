// Reading what torch.save and torch.jit.save write: a zip archive with the pickle data.pkl, which
// describes everything, and one stored entry per storage, which holds the bytes.
//
//   TorchFile file("checkpoint_0.pt");
//   file.names();                       // "model_state_dict.module.perceiver.latents", ...
//   file.root().find("epoch")->integer();
//
// A tensor's name is its way through dicts, lists and the attributes of objects, joined with dots.
// The pickle is read as data (pickle_value.h); opening reads it and the zip directory, and read() only
// the bytes asked for, straight from the archive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "floe/io/pickle_value.h"
#include "floe/io/tensor_source.h"
#include "floe/io/torch_file_tensor.h"
#include "floe/io/zip_reader.h"

namespace floe {

class TorchFile : public TensorSource {
 public:
  // Throws DataError for a file that is damaged, cut off, or says what cannot be.
  // `under`: only what lies there, with names that begin below it ("model_state_dict"); empty: all.
  explicit TorchFile(const std::string& path, const std::string& under = "");
  // An archive inside of a file, such as an item of a distributed checkpoint.
  TorchFile(std::shared_ptr<const File> file, std::int64_t offset, std::int64_t length,
            const std::string& under = "");

  std::vector<std::string> names() const override;
  // Throws DataError for a tensor that is refused(): it is there, but cannot be read.
  const TensorInfo* find(const std::string& name) const override;
  // A strided view (a transposed weight, say) is gathered: its bytes are read with those in between.
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;

  // All that the file says, also outside of `under`. Tensors in it are objects; tensor_at() tells
  // which.
  const pickle::Value& root() const { return root_; }
  // Null when the value is no tensor of this source. A tensor with several names is found under its
  // first.
  const TensorInfo* tensor_at(const pickle::Value& value) const;
  // Tensors of kinds that floe does not read, and those whose name another one has too, and why, as a
  // part of a sentence. They are not among names().
  const std::map<std::string, std::string>& refused() const { return refused_; }
  // By torch.jit.save: the names are those of attributes, and root() is the module.
  bool is_torchscript() const { return is_torchscript_; }

 private:
  // Where a view that is not row-major has its elements.
  struct Strided {
    TorchTensor view;
    std::int64_t storage_offset = 0;  // in the file
  };

  void open(const std::string& under);
  void add(const std::string& name, const pickle::Value& value);
  std::int64_t data_offset(const ZipEntry& entry);
  void gather(const Strided& strided, std::int64_t first, std::int64_t count, std::byte* out) const;

  ZipReader zip_;
  std::string prefix_;  // of the names of all entries
  bool is_torchscript_ = false;
  pickle::Value root_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, Strided> strided_;      // by tensor
  std::map<std::string, std::string> refused_;  // by tensor: why
  std::map<const pickle::Node*, std::string> name_at_;
  std::map<const ZipEntry*, std::int64_t> data_offsets_;  // those found so far
};

}  // namespace floe
