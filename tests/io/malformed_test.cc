// Every defect of a safetensors file has its message.
#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/io/safetensors/safetensors.h"
#include "tests/io/scratch.h"

namespace floe::malformed_test {
namespace {

using test::safetensors_bytes;

struct Case {
  std::string what, bytes, expected;
};

std::string entry(const std::string& fields, const std::string& data = "0123") {
  return safetensors_bytes("{\"t\":" + fields + "}", data);
}

std::string length_only(std::uint64_t length, const std::string& rest = "") {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

const std::vector<Case> kCases{
    {"empty", "", "has 0 bytes, too few for the 8-byte header length"},
    {"seven_bytes", "1234567", "has 7 bytes, too few"},
    {"header_beyond_file", length_only(100, "{}"), "its header would have 100 bytes, but 2 follow"},
    {"header_length_2_64", length_only(~0ull, "{}"),
     "its header would have 18446744073709551615 bytes"},
    {"header_length_2_63", length_only(1ull << 63, "{}"),
     "its header would have 9223372036854775808"},
    {"no_header", length_only(0), "its header must begin with '{'"},
    {"not_json", safetensors_bytes("{\"a\":", ""), "not valid JSON"},
    {"leading_space", safetensors_bytes(" {}", ""), "its header must begin with '{'"},
    {"trailing_text", safetensors_bytes("{}{}", ""), "not valid JSON"},
    {"not_utf8", safetensors_bytes("{\"\xff\":1}", ""), "not valid JSON"},
    {"a_list", safetensors_bytes("[]", ""), "its header must begin with '{'"},
    {"deep", safetensors_bytes("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", ""),
     "nested deeper than 64 levels"},
    {"entry_not_object", entry("5"), "tensor \"t\": its entry must be an object, not 5"},
    {"no_dtype", entry(R"({"shape":[4],"data_offsets":[0,4]})"), "\"dtype\" is missing"},
    {"no_shape", entry(R"({"dtype":"U8","data_offsets":[0,4]})"), "\"shape\" is missing"},
    {"no_offsets", entry(R"({"dtype":"U8","shape":[4]})"), "\"data_offsets\" is missing"},
    {"dtype_unknown", entry(R"({"dtype":"F128","shape":[4],"data_offsets":[0,4]})"),
     "dtype \"F128\" is not one that floe reads"},
    {"dtype_number", entry(R"({"dtype":4,"shape":[4],"data_offsets":[0,4]})"),
     "dtype 4 is not one"},
    {"shape_text", entry(R"({"dtype":"U8","shape":"4","data_offsets":[0,4]})"),
     "\"shape\" must be a list, not \"4\""},
    {"shape_negative", entry(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"),
     "\"shape\" must hold integers from 0 to 2^63-1, not -4"},
    {"shape_float", entry(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})"),
     "\"shape\" must hold integers from 0 to 2^63-1, not 4.0"},
    {"shape_too_large",
     entry(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]})"),
     "not 9223372036854775808"},
    {"shape_overflow",
     entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
     "shape [4294967296, 4294967296] has more than 2^63 bytes"},
    {"bytes_overflow",
     entry(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
     "has more than 2^63 bytes"},
    {"offsets_one", entry(R"({"dtype":"U8","shape":[4],"data_offsets":[0]})"),
     "\"data_offsets\" must be a list of two integers, not [0]"},
    {"offsets_negative", entry(R"({"dtype":"U8","shape":[4],"data_offsets":[-1,3]})"),
     "\"data_offsets\" must hold integers from 0 to 2^63-1, not -1"},
    {"offsets_reversed", entry(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"),
     "data_offsets [4, 0] must lie inside the 4 data bytes"},
    {"offsets_beyond", entry(R"({"dtype":"U8","shape":[5],"data_offsets":[0,5]})"),
     "data_offsets [0, 5] must lie inside the 4 data bytes of the file; is the file cut off?"},
    {"size_differs", entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
     "data_offsets [0, 4] are 4 bytes, but F32 of shape [2] needs 8"},
    {"duplicate_tensor",
     safetensors_bytes(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                       R"("t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                       "0123"),
     "has the key \"t\" twice"},
    {"duplicate_field", entry(R"({"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]})"),
     "has the key \"dtype\" twice"},
    {"overlap",
     safetensors_bytes(R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                       R"("u":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                       "0123"),
     "tensor \"u\" begins at data byte 2, inside tensor \"t\", which ends at 3"},
    {"same_bytes_twice",
     safetensors_bytes(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                       R"("u":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                       "0123"),
     "inside tensor \"t\""},
    {"hole",
     safetensors_bytes(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("u":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                       "0123"),
     "data bytes 1 to 2, before tensor \"u\", belong to no tensor"},
    {"bytes_left", entry(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})", "01234567"),
     "the last 4 bytes belong to no tensor"},
    {"metadata_list", safetensors_bytes(R"({"__metadata__":[]})", ""),
     "__metadata__ must be an object"},
    {"metadata_number", safetensors_bytes(R"({"__metadata__":{"a":1}})", ""),
     "__metadata__ \"a\" must be a string, not 1"},
};

class Malformed : public testing::TestWithParam<Case> {};

TEST_P(Malformed, IsRefusedInWords) {
  const test::Scratch scratch;
  const std::string path = scratch.write("bad.safetensors", GetParam().bytes);
  try {
    SafetensorsFile file(path);
    FAIL() << "it was accepted";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(GetParam().expected), text.npos) << text;
    EXPECT_NE(text.find("bad.safetensors"), text.npos) << text;
    EXPECT_EQ(text.find('\n'), text.npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Safetensors, Malformed, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.what; });

// A file cut at any byte is refused, never misread.
TEST(Malformed, EveryTruncationIsRefused) {
  const test::Scratch scratch;
  const std::string whole =
      entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", "01234567");
  EXPECT_NO_THROW(SafetensorsFile(scratch.write("whole", whole)));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(SafetensorsFile(scratch.write("cut", whole.substr(0, length))), DataError)
        << length;
}

}  // namespace
}  // namespace floe::malformed_test
