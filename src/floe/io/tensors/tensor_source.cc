#include "floe/io/tensors/tensor_source.h"

#include <algorithm>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"

namespace floe {

std::int64_t TensorInfo::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::int64_t TensorInfo::bytes() const { return numel() * size_of(dtype); }

const TensorInfo& TensorSource::get(const std::string& name) const {
  if (const TensorInfo* info = find(name)) return *info;
  throw DataError(str("there is no tensor '", name, "' in the files", did_you_mean(name, names())));
}

void TensorSource::keep_open(std::shared_ptr<const File> file) {
  const std::lock_guard lock(mutex_);
  const std::string path = file->path();
  files_[path] = std::move(file);
}

std::shared_ptr<const File> TensorSource::open(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  auto& file = files_[path];
  if (!file) file = std::make_shared<const File>(path);
  return file;
}

void TensorSource::check_request(const TensorInfo& tensor, std::int64_t first_element,
                                 std::int64_t count, std::span<const std::byte> out) {
  const std::int64_t numel = tensor.numel(), size = size_of(tensor.dtype);
  require<DataError>(
      first_element >= 0 && count >= 0 && first_element <= numel && count <= numel - first_element,
      "tensor '", tensor.name, "' has ", numel, " elements, but ", count,
      " were asked for from element ", first_element);
  require<DataError>(out.size() == static_cast<std::size_t>(count * size), "tensor '", tensor.name,
                     "': ", count, " elements need a buffer of ", count * size, " bytes, not ",
                     out.size());
}

void TensorSource::read_range(const ByteRange& range, std::span<std::byte> out) const {
  open(range.file)->read_at(range.offset, out);
  bytes_read_ += out.size();
}

void TensorSource::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                        std::span<std::byte> out) const {
  check_request(tensor, first_element, count, out);
  std::int64_t skip = first_element * size_of(tensor.dtype);
  for (const ByteRange& range : tensor.ranges) {
    if (out.empty()) return;
    const std::int64_t take = std::min(range.length - skip, static_cast<std::int64_t>(out.size()));
    if (take <= 0) {
      skip -= range.length;
      continue;
    }
    read_range({range.file, range.offset + skip, take}, out.first(static_cast<std::size_t>(take)));
    out = out.subspan(static_cast<std::size_t>(take));
    skip = 0;
  }
  require<DataError>(out.empty(), "tensor '", tensor.name, "': its byte ranges hold ", out.size(),
                     " bytes less than its shape needs");
}

RenamedSource::RenamedSource(std::shared_ptr<const TensorSource> source, const Renames& names)
    : source_(std::move(source)) {
  for (const auto& [name, old_name] : names) {
    const TensorInfo& original = source_->get(old_name);
    Tensor tensor{original, &original};
    tensor.info.name = name;
    tensors_.emplace(name, std::move(tensor));
  }
}

const TensorInfo* RenamedSource::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.info;
}

void RenamedSource::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                         std::span<std::byte> out) const {
  const auto found = tensors_.find(tensor.name);
  require<DataError>(found != tensors_.end(), "tensor ", quoted(tensor.name),
                     " is not of this source");
  source_->read(*found->second.original, first_element, count, out);
}

Renames names_below(const TensorSource& source, std::string_view prefix) {
  Renames renames;
  for (const std::string& name : source.names())
    if (name.starts_with(prefix)) renames.emplace(name.substr(prefix.size()), name);
  return renames;
}

MergedSource::MergedSource(std::vector<std::shared_ptr<const TensorSource>> sources)
    : sources_(std::move(sources)) {
  for (const auto& source : sources_)
    for (const std::string& name : source->names()) owner_.emplace(name, source.get());
}

const TensorInfo* MergedSource::find(const std::string& name) const {
  const auto found = owner_.find(name);
  return found == owner_.end() ? nullptr : found->second->find(name);
}

void MergedSource::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                        std::span<std::byte> out) const {
  const auto found = owner_.find(tensor.name);
  require<DataError>(found != owner_.end(), "tensor ", quoted(tensor.name),
                     " is not of this source");
  found->second->read(tensor, first_element, count, out);
}

std::uint64_t MergedSource::bytes_read() const {
  std::uint64_t sum = 0;
  for (const auto& source : sources_) sum += source->bytes_read();
  return sum;
}

}  // namespace floe
