// What torch.save and torch.jit.save write: a zip archive with the pickle data.pkl, which
// describes everything, and one stored entry per storage, which holds the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file_tensor.h"
#include "floe/io/torch_file/zip.h"

namespace floe {

// Reading such a file.
//
//   TorchFile file("checkpoint_0.pt");
//   file.names();                       // "model_state_dict.module.perceiver.latents", ...
//   file.root().find("epoch")->integer();
//
// A tensor's name is its way through dicts, lists and the attributes of objects, joined with dots.
// The pickle is read as data (pickle.h); opening reads it and the zip directory, and read() only
// the bytes asked for, straight from the archive.
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
  // A strided view (a transposed weight, say) is gathered: its bytes are read with those in
  // between.
  void read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
            std::span<std::byte> out) const override;

  // All that the file says, also outside of `under`. Tensors in it are objects; tensor_at() tells
  // which.
  const pickle::Value& root() const { return root_; }
  // Null when the value is no tensor of this source. A tensor with several names is found under its
  // first.
  const TensorInfo* tensor_at(const pickle::Value& value) const;
  // Tensors of kinds that floe does not read, and those whose name another one has too, and why, as
  // a part of a sentence. They are not among names().
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

// Writing a file that torch.load(weights_only=True) reads, without holding its tensors: they are
// declared, their bytes come in pieces, and what the file says about them comes last.
//
//   TorchFileWriter writer("checkpoint_0.pt");
//   const pickle::Value weight = writer.declare("weight", DType::bf16, {4096, 4096});
//   for (auto piece : pieces) writer.write("weight", piece);
//   writer.finish(pickle::dict({{"epoch", 3},
//                               {"model_state_dict", pickle::ordered_dict({{"w", weight}})}}));
//
// The file appears under its name only in finish(). A value from declare() that is put into the
// tree twice is one tensor with two names in Python, as tied weights are.
//
// Threads: one at a time. Misuse (an unknown name, too many or too few bytes) throws Error.
class TorchFileWriter {
 public:
  explicit TorchFileWriter(const std::string& path);

  // At any time before finish(), also between writes. The name is for write() only.
  pickle::Value declare(const std::string& name, DType dtype,
                        const std::vector<std::int64_t>& shape);
  // The next bytes of this tensor, row-major.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // Every declared byte must have been written. `root` is what torch.load returns.
  void finish(const pickle::Value& root);

 private:
  ZipWriter zip_;
  std::map<std::string, std::size_t> entries_;  // by tensor
};

}  // namespace floe
