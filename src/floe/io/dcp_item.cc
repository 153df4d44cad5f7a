#include "floe/io/dcp_item.h"

#include <utility>

#include "floe/core/error.h"
#include "floe/io/crc32.h"
#include "floe/io/pickle_writer.h"
#include "floe/io/torch_file_tensor.h"

namespace floe {
namespace {

constexpr std::int64_t kAlignment = 64;  // as torch.save's

// Puts a whole small entry at the end.
void add(std::string& archive, std::vector<zip::Placed>& entries, const char* name,
         const std::string& bytes) {
  zip::Placed entry = zip::place(str("archive/", name), static_cast<std::int64_t>(bytes.size()),
                                 static_cast<std::int64_t>(archive.size()), kAlignment);
  entry.crc = crc32(bytes);
  archive += zip::local_header(entry) + bytes;
  entries.push_back(std::move(entry));
}

void add_common(std::string& archive, std::vector<zip::Placed>& entries,
                const pickle::Value& root) {
  add(archive, entries, "data.pkl", pickle::write(root));
  add(archive, entries, "byteorder", "little");
  add(archive, entries, "version", "3\n");
}

}  // namespace

DcpItem::DcpItem(DType dtype, const std::vector<std::int64_t>& shape) {
  add_common(small_, entries_, torch_tensor_value(dtype, "0", shape));
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes),
            "a tensor has the impossible shape [", join(shape), "]");
  entries_.push_back(
      zip::place("archive/data/0", bytes, static_cast<std::int64_t>(small_.size()), kAlignment));
}

std::string DcpItem::head(std::uint32_t data_crc) {
  entries_.back().crc = data_crc;
  return small_ + zip::local_header(entries_.back());
}

std::string DcpItem::tail(std::uint32_t data_crc) {
  entries_.back().crc = data_crc;
  return zip::directory(entries_, entries_.back().end());
}

std::string dcp_object_item(const pickle::Value& value) {
  std::string archive;
  std::vector<zip::Placed> entries;
  add_common(archive, entries, value);
  return archive + zip::directory(entries, static_cast<std::int64_t>(archive.size()));
}

}  // namespace floe
