// An item of a .distcp file: an archive of torch.save that holds one tensor or one object.
//
// Everything but the elements is small and known beforehand, save the elements' checksum; so a large
// item is written without being put together in memory: head, elements, tail.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/pickle_value.h"
#include "floe/io/zip_records.h"

namespace floe {

class DcpItem {
 public:
  DcpItem(DType dtype, const std::vector<std::int64_t>& shape);

  std::int64_t head_bytes() const { return entries_.back().data_offset; }
  std::int64_t data_bytes() const { return entries_.back().size; }
  // Both for elements with this checksum.
  std::string head(std::uint32_t data_crc);
  std::string tail(std::uint32_t data_crc);

 private:
  std::string small_;  // the entries before the elements
  std::vector<zip::Placed> entries_;
};

// The whole item of something that is no tensor.
std::string dcp_object_item(const pickle::Value& value);

}  // namespace floe
