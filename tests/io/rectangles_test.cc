// Runs of elements as rectangles, and checksums.
#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"

namespace floe::rectangles_test {
namespace {

// The element numbers of a rectangle, row-major.
std::vector<std::int64_t> elements_of(const std::vector<std::int64_t>& shape,
                                      const Rectangle& box) {
  std::vector<std::int64_t> elements;
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    std::int64_t rest = i, element = 0, stride = 1, inner = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      element += (box.offsets[d] + rest / inner % box.sizes[d]) * stride;
      inner *= box.sizes[d];
      stride *= shape[d];
    }
    elements.push_back(element);
  }
  return elements;
}

TEST(Rectangles, AreTheRunAndAsFewAsCanBe) {
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {7}, {3, 4}, {1, 5}, {4, 1}, {2, 3, 4}, {3, 1, 2, 2}, {1, 1, 1}, {2, 2, 2, 2}}) {
    std::int64_t numel = 1;
    for (const auto size : shape) numel *= size;
    for (std::int64_t first = 0; first <= numel; ++first)
      for (std::int64_t count = 0; first + count <= numel; ++count) {
        const auto boxes = rectangles_of(shape, first, count);
        std::int64_t next = first;
        for (const Rectangle& box : boxes) {
          ASSERT_EQ(box.offsets.size(), shape.size());
          for (const std::int64_t element : elements_of(shape, box)) ASSERT_EQ(element, next++);
        }
        ASSERT_EQ(next, first + count);
        ASSERT_LE(boxes.size(), 2 * shape.size() - 1);
        const bool whole = count == numel || (shape.size() == 1 && count > 0);
        const bool rows =
            shape.size() == 2 && first % shape[1] == 0 && count > 0 && count % shape[1] == 0;
        if (whole || rows) {
          ASSERT_EQ(boxes.size(), 1u);
        }
      }
  }
}

TEST(Rectangles, AScalarIsOne) {
  ASSERT_EQ(rectangles_of({}, 0, 1).size(), 1u);
  EXPECT_TRUE(rectangles_of({}, 0, 1)[0].sizes.empty());
  EXPECT_TRUE(rectangles_of({}, 0, 0).empty());
}

TEST(Rectangles, OutsideIsRefused) {
  EXPECT_THROW(rectangles_of({3, 4}, 10, 3), Error);
  EXPECT_THROW(rectangles_of({3, 4}, -1, 2), Error);
  EXPECT_THROW(rectangles_of({3, 4}, 13, 0), Error);
}

TEST(Crc32, KnownValueAndParts) {
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);  // the check value of this CRC
  EXPECT_EQ(crc32("56789", crc32("1234")), 0xcbf43926u);
  EXPECT_EQ(crc32_joined(crc32("1234"), crc32("56789"), 5), 0xcbf43926u);
  EXPECT_EQ(crc32_joined(crc32("123456789"), crc32(""), 0), 0xcbf43926u);
}

}  // namespace
}  // namespace floe::rectangles_test
