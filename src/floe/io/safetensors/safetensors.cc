#include "floe/io/safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/json_text.h"

namespace floe {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

constexpr std::int64_t kMostHeaderBytes = 100'000'000;  // the limit of the reference reader

// One header entry, with its place in every message.
class Entry {
 public:
  Entry(const std::string& file, const std::string& name, const json& fields)
      : file_(file), name_(name), fields_(fields) {
    check(fields.is_object(), "its entry must be an object, not ", shown(fields));
  }

  TensorInfo parse(std::int64_t data_offset, std::int64_t data_bytes) const {
    TensorInfo info;
    info.name = name_;
    info.dtype = dtype();
    info.shape = shape();
    const auto [begin, end] = offsets();
    check(begin <= end && end <= data_bytes, "data_offsets [", begin, ", ", end,
          "] must lie inside the ", data_bytes, " data bytes of the file; is the file cut off?");
    const std::int64_t expected = bytes(info);
    check(end - begin == expected, "data_offsets [", begin, ", ", end, "] are ", end - begin,
          " bytes, but ", safetensors_name(info.dtype), " of shape [", join(info.shape), "] needs ",
          expected);
    info.ranges.push_back({file_, data_offset + begin, expected});
    return info;
  }

 private:
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    require<DataError>(condition, "'", file_, "': tensor ", quoted(name_), ": ", parts...);
  }

  const json& field(const char* key) const {
    const auto found = fields_.find(key);
    check(found != fields_.end(), "\"", key, "\" is missing");
    return *found;
  }

  std::int64_t count(const char* key, const json& value) const {
    check(value.is_number_unsigned() &&
              value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
          "\"", key, "\" must hold integers from 0 to 2^63-1, not ", shown(value));
    return value.get<std::int64_t>();
  }

  DType dtype() const {
    const json& value = field("dtype");
    const auto dtype =
        value.is_string() ? dtype_from_safetensors(value.get<std::string>()) : std::nullopt;
    check(dtype.has_value(), "dtype ", shown(value),
          " is not one that floe reads "
          "(F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U8, BOOL)");
    return *dtype;
  }

  std::vector<std::int64_t> shape() const {
    const json& value = field("shape");
    check(value.is_array(), "\"shape\" must be a list, not ", shown(value));
    std::vector<std::int64_t> shape;
    for (const json& size : value) shape.push_back(count("shape", size));
    return shape;
  }

  std::pair<std::int64_t, std::int64_t> offsets() const {
    const json& value = field("data_offsets");
    check(value.is_array() && value.size() == 2,
          "\"data_offsets\" must be a list of two integers, not ", shown(value));
    return {count("data_offsets", value[0]), count("data_offsets", value[1])};
  }

  // TensorInfo::bytes() with every multiplication checked.
  std::int64_t bytes(const TensorInfo& info) const {
    std::int64_t product = size_of(info.dtype);
    for (const std::int64_t size : info.shape)
      check(!__builtin_mul_overflow(product, size, &product), "shape [", join(info.shape),
            "] has more than 2^63 bytes");
    return product;
  }

  const std::string& file_;
  const std::string& name_;
  const json& fields_;
};

Metadata parse_metadata(const json& value, const std::string& file) {
  require<DataError>(value.is_object(), "'", file, "': __metadata__ must be an object, not ",
                     shown(value));
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    require<DataError>(text.is_string(), "'", file, "': __metadata__ ", quoted(key),
                       " must be a string, not ", shown(text));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// The tensors must cover the data exactly: bytes that belong to none, or to two, mean that the
// header is not the one of this data.
void check_cover(const SafetensorsHeader& header, const std::string& file, std::int64_t data_offset,
                 std::int64_t file_size) {
  std::vector<const TensorInfo*> order;
  for (const auto& [name, info] : header.tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    const ByteRange &x = a->ranges[0], &y = b->ranges[0];
    return std::pair(x.offset, x.length) < std::pair(y.offset, y.length);
  });
  std::int64_t covered = data_offset;
  const TensorInfo* before = nullptr;
  for (const TensorInfo* info : order) {
    const ByteRange& range = info->ranges[0];
    require<DataError>(range.offset >= covered, "'", file, "': tensor ", quoted(info->name),
                       " begins at data byte ", range.offset - data_offset, ", inside tensor ",
                       quoted(before ? before->name : ""), ", which ends at ",
                       covered - data_offset);
    require<DataError>(range.offset == covered, "'", file, "': data bytes ", covered - data_offset,
                       " to ", range.offset - data_offset, ", before tensor ", quoted(info->name),
                       ", belong to no tensor");
    covered += range.length;
    before = info;
  }
  require<DataError>(covered == file_size, "'", file, "': the last ", file_size - covered,
                     " bytes belong to no tensor; expected the file to end at byte ", covered,
                     ", but it ends at ", file_size);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = std::make_shared<const File>(path);
  require<DataError>(file->size() >= 8, "'", path, "' has ", file->size(),
                     " bytes, too few for the 8-byte header length of a safetensors file");
  std::array<std::byte, 8> prefix;
  file->read_at(0, prefix);
  std::uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  require<DataError>(length <= static_cast<std::uint64_t>(kMostHeaderBytes) &&
                         length <= static_cast<std::uint64_t>(file->size() - 8),
                     "'", path, "' is no safetensors file or is cut off: its header would have ",
                     length, " bytes, but ", file->size() - 8, " follow (and at most ",
                     kMostHeaderBytes, " are allowed)");
  std::string json(static_cast<std::size_t>(length), '\0');
  file->read_at(8, std::as_writable_bytes(std::span(json)));
  header_ =
      parse_safetensors_header(json, path, 8 + static_cast<std::int64_t>(length), file->size());
  keep_open(std::move(file));
}

std::vector<std::string> SafetensorsFile::names() const { return names_in(header_.tensors); }

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? nullptr : &found->second;
}

SafetensorsHeader parse_safetensors_header(const std::string& text, const std::string& file,
                                           std::int64_t data_offset, std::int64_t file_size) {
  require<DataError>(text.starts_with('{'), "'", file,
                     "' is no safetensors file: its header must begin with '{'");
  const json entries = parse_json(text, file);
  SafetensorsHeader header;
  for (const auto& [name, fields] : entries.items()) {
    if (name == "__metadata__")
      header.metadata = parse_metadata(fields, file);
    else
      header.tensors[name] = Entry(file, name, fields).parse(data_offset, file_size - data_offset);
  }
  check_cover(header, file, data_offset, file_size);
  return header;
}

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
