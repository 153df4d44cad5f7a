#include <utility>

#include "floe/core/error.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/io/torch_file/torch_file_tensor.h"

namespace floe {
namespace {

constexpr std::int64_t kAlignment = 64;  // as torch.save's
const std::string kPrefix = "archive/";

}  // namespace

TorchFileWriter::TorchFileWriter(const std::string& path) : zip_(path, kAlignment) {
  zip_.add(kPrefix + "version", "3\n");
  zip_.add(kPrefix + ".format_version", "1");
  zip_.add(kPrefix + ".storage_alignment", std::to_string(kAlignment));
  zip_.add(kPrefix + "byteorder", "little");
}

pickle::Value TorchFileWriter::declare(const std::string& name, DType dtype,
                                       std::vector<std::int64_t> shape) {
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), "'", zip_.path(),
            "': tensor ", quoted(name), " has the impossible shape [", join(shape), "]");
  const std::string key = std::to_string(entries_.size());
  const auto [entry, is_new] = entries_.emplace(name, 0);
  require(is_new, "'", zip_.path(), "': tensor ", quoted(name), " was declared twice");
  entry->second = zip_.declare(kPrefix + "data/" + key, bytes);
  return torch_tensor_value(dtype, key, shape);
}

void TorchFileWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto entry = entries_.find(name);
  require(entry != entries_.end(), "'", zip_.path(), "': tensor ", quoted(name),
          " was not declared");
  const auto missing = static_cast<std::size_t>(zip_.missing(entry->second));
  require(bytes.size() <= missing, "'", zip_.path(), "': tensor ", quoted(name), " lacks ", missing,
          " bytes, but ", bytes.size(), " more were written");
  zip_.write(entry->second, bytes);
}

void TorchFileWriter::finish(const pickle::Value& root) {
  for (const auto& [name, entry] : entries_)
    require(zip_.missing(entry) == 0, "'", zip_.path(), "': tensor ", quoted(name), " lacks ",
            zip_.missing(entry), " bytes");
  zip_.add(kPrefix + "data.pkl", pickle::write(root));
  zip_.finish();
}

}  // namespace floe
