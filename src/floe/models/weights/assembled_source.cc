#include "floe/models/weights/assembled_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "floe/core/error.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/nn/load.h"

namespace floe::models {

void AssembledSource::add(const std::string& name, std::vector<std::int64_t> shape, DType dtype,
                          std::vector<WeightPiece> pieces) {
  TensorInfo info{.name = name, .shape = std::move(shape), .dtype = dtype};
  std::int64_t total = 0;
  for (const WeightPiece& piece : pieces) {
    total += piece.count;
    require(!piece.tensor || piece.tensor->dtype == dtype, "the pieces of '", name,
            "' have different types");
  }
  require(total == info.numel(), "the pieces of '", name, "' have ", total, " elements, not ",
          info.numel());
  entries_[name] = {std::move(info), std::move(pieces), false};
}

void AssembledSource::add_transposed(const std::string& name,
                                     std::shared_ptr<const TensorSource> source,
                                     const TensorInfo& tensor) {
  TensorInfo info{.name = name, .shape = {tensor.shape[1], tensor.shape[0]}, .dtype = tensor.dtype};
  const std::int64_t count = info.numel();
  entries_[name] = {
      std::move(info), {{.source = std::move(source), .tensor = &tensor, .count = count}}, true};
}

std::vector<std::string> AssembledSource::names() const { return names_in(entries_); }

const TensorInfo* AssembledSource::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.info;
}

void AssembledSource::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                           std::span<std::byte> out) const {
  const auto found = entries_.find(tensor.name);
  require<DataError>(found != entries_.end(), "tensor '", tensor.name, "' is not of this source");
  check_request(tensor, first_element, count, out);
  const Entry& entry = found->second;
  const std::int64_t size = size_of(tensor.dtype);
  if (entry.transposed) {
    const WeightPiece& piece = entry.pieces[0];
    const at::Tensor whole = nn::read_tensor(*piece.source, *piece.tensor).t().contiguous();
    std::memcpy(out.data(),
                static_cast<const std::byte*>(whole.const_data_ptr()) + first_element * size,
                out.size());
    return;
  }
  std::int64_t begins = 0;  // where the piece begins in the parameter
  std::int64_t done = 0;
  for (const WeightPiece& piece : entry.pieces) {
    const std::int64_t from = std::max(first_element + done, begins);
    const std::int64_t n = std::min(first_element + count, begins + piece.count) - from;
    if (n > 0) {
      const auto part =
          out.subspan(static_cast<std::size_t>(done * size), static_cast<std::size_t>(n * size));
      const std::int64_t inside = piece.first + (from - begins);
      if (piece.source) {
        piece.source->read(*piece.tensor, inside, n, part);
      } else {
        const at::Tensor values =
            at::empty({n}, at::TensorOptions().dtype(nn::torch_dtype(tensor.dtype)));
        nn::fill(piece.init, seed_, piece.seed_name, inside, values);
        std::memcpy(part.data(), values.const_data_ptr(), part.size());
      }
      done += n;
    }
    begins += piece.count;
  }
}

std::set<std::string> AssembledSource::names_from(
    const std::set<const TensorSource*>& files) const {
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_)
    if (std::all_of(entry.pieces.begin(), entry.pieces.end(), [&](const WeightPiece& piece) {
          return piece.source && files.contains(piece.source.get());
        }))
      names.insert(name);
  return names;
}

std::uint64_t AssembledSource::bytes_read() const {
  std::set<const TensorSource*> sources;
  for (const auto& [name, entry] : entries_)
    for (const WeightPiece& piece : entry.pieces)
      if (piece.source) sources.insert(piece.source.get());
  std::uint64_t total = 0;
  for (const TensorSource* source : sources) total += source->bytes_read();
  return total;
}

std::shared_ptr<const TensorSource> unwrapped(std::shared_ptr<const TensorSource> source,
                                              const std::string& path) {
  const Renames renames = weight_names(*source, WeightNaming(*source), path);
  const auto is_same = [](const auto& entry) { return entry.first == entry.second; };
  if (std::all_of(renames.begin(), renames.end(), is_same)) return source;
  return std::make_shared<RenamedSource>(std::move(source), renames);
}

}  // namespace floe::models
