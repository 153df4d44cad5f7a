#include "floe/io/renamed_source.h"

#include <utility>

#include "floe/core/error.h"
#include "floe/io/json_text.h"

namespace floe {

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
