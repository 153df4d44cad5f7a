// How torch describes a tensor in a pickle: a call of torch._utils._rebuild_tensor_v2 (or a
// relative) with a storage, an offset, a shape and strides. Here that call is taken apart, not
// made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/io/torch_file/pickle.h"

namespace floe {

// Element i, j, ... lies at offset + i*strides[0] + j*strides[1] + ... of the storage.
struct TorchTensor {
  DType dtype = DType::f32;
  std::string storage;             // its key: the entry data/KEY of the archive
  std::int64_t storage_numel = 0;  // elements in the storage
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape, strides;

  std::int64_t numel() const;
  // Row-major without gaps: the elements are one range of the storage.
  bool is_contiguous() const;
};

// A tensor that is all right but not of a kind that floe reads: complex, sparse, quantized.
class UnreadableTensor : public DataError {
 public:
  using DataError::DataError;
};

// True for calls that make a tensor or a parameter, readable or not.
bool is_torch_tensor(const pickle::Value& value);
// Everything is checked: kinds, signs, overflow, and that all elements lie in the storage. Throws
// UnreadableTensor, or DataError when the description cannot be right; both with a part of a
// sentence ("has dtype torch.complex64, ...") to be put after the tensor's name.
TorchTensor parse_torch_tensor(const pickle::Value& value);

// The parts of such a description: a torch.Size, tuple or list of integers from 0 (`what` names it
// in messages), and a dtype such as torch.float32. They throw in the same manner.
std::vector<std::int64_t> parse_torch_size(const pickle::Value& value, std::string_view what);
DType parse_torch_dtype(const pickle::Value& value);

// The other direction: what torch.load makes a tensor of; contiguous, from the start of its
// storage.
pickle::Value torch_tensor_value(DType dtype, const std::string& storage,
                                 const std::vector<std::int64_t>& shape);

}  // namespace floe
