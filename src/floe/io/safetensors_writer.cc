#include "floe/io/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/json_text.h"

namespace floe {

SafetensorsWriter::SafetensorsWriter(const std::string& path, Metadata metadata)
    : file_(path), metadata_(std::move(metadata)) {}

void SafetensorsWriter::declare(const std::string& name, DType dtype,
                                std::vector<std::int64_t> shape) {
  require(!header_written_, "'", file_.path(), "': tensor ", quoted(name),
          " was declared after the first write");
  require(name != "__metadata__", "'", file_.path(),
          "': a tensor cannot have the name __metadata__");
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), "'", file_.path(),
            "': tensor ", quoted(name), " has the impossible shape [", join(shape), "]");
  const bool is_new = tensors_.emplace(name, Tensor{dtype, std::move(shape), bytes}).second;
  require(is_new, "'", file_.path(), "': tensor ", quoted(name), " was declared twice");
  order_.push_back(name);
}

void SafetensorsWriter::write_header() {
  std::stable_sort(order_.begin(), order_.end(), [&](const std::string& a, const std::string& b) {
    return size_of(tensors_.at(a).dtype) > size_of(tensors_.at(b).dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  std::int64_t end = 0;
  for (const std::string& name : order_) {
    Tensor& tensor = tensors_.at(name);
    tensor.offset = end;
    require(!__builtin_add_overflow(end, tensor.bytes, &end), "'", file_.path(),
            "': the tensors have more than 2^63 bytes");
    // Not header[name]: ordered_json would search all earlier names for each new one.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        name, nlohmann::ordered_json{{"dtype", safetensors_name(tensor.dtype)},
                                     {"shape", tensor.shape},
                                     {"data_offsets", {tensor.offset, end}}});
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    throw Error(str("'", file_.path(), "': a tensor name or metadata value is not UTF-8"));
  }
  text.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()), 8)), ' ');
  const std::uint64_t length = text.size();
  std::byte prefix[8];
  std::memcpy(prefix, &length, sizeof length);
  file_.write_at(0, prefix);
  file_.write_at(8, std::as_bytes(std::span(text)));
  for (auto& [name, tensor] : tensors_) tensor.offset += 8 + static_cast<std::int64_t>(length);
  header_written_ = true;
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  if (!header_written_) write_header();
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), "'", file_.path(), "': tensor ", quoted(name),
          " was not declared");
  Tensor& tensor = found->second;
  const auto count = static_cast<std::int64_t>(bytes.size());
  require(count <= tensor.bytes - tensor.written, "'", file_.path(), "': tensor ", quoted(name),
          " has ", tensor.bytes, " bytes, but ", tensor.written + count, " were written");
  file_.write_at(tensor.offset + tensor.written, bytes);
  tensor.written += count;
}

void SafetensorsWriter::finish() {
  if (!header_written_) write_header();
  for (const auto& [name, tensor] : tensors_)
    require(tensor.written == tensor.bytes, "'", file_.path(), "': tensor ", quoted(name), " has ",
            tensor.bytes, " bytes, but only ", tensor.written, " were written");
  file_.commit();
}

}  // namespace floe
