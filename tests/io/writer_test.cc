#include <gtest/gtest.h>

#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/safetensors/safetensors.h"
#include "tests/io/scratch.h"

namespace floe::writer_test {
namespace {

using test::Scratch;

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string all_of(const TensorSource& source, const std::string& name) {
  const TensorInfo& info = source.get(name);
  std::string out(static_cast<std::size_t>(info.bytes()), '?');
  source.read(info, 0, info.numel(), std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(Writer, RoundTripInPiecesAndAnyOrder) {
  const Scratch scratch;
  SafetensorsWriter writer(scratch.path("a"), {{"format", "pt"}, {"quote", "\"\n"}});
  writer.declare("small", DType::u8, {3});
  writer.declare("large", DType::i64, {1});
  writer.declare("empty", DType::f16, {0, 7});
  writer.declare("scalar", DType::bf16, {});
  writer.write("small", bytes("ab"));
  writer.write("scalar", bytes("xy"));
  writer.write("large", bytes("01234567"));
  writer.write("small", bytes("c"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path("a")));
  writer.finish();

  const SafetensorsFile file(scratch.path("a"));
  EXPECT_EQ(all_of(file, "small"), "abc");
  EXPECT_EQ(all_of(file, "large"), "01234567");
  EXPECT_EQ(all_of(file, "scalar"), "xy");
  EXPECT_EQ(file.get("empty").shape, (std::vector<std::int64_t>{0, 7}));
  EXPECT_EQ(file.metadata().at("quote"), "\"\n");
}

TEST(Writer, EveryTensorIsAligned) {
  const Scratch scratch;
  SafetensorsWriter writer(scratch.path("a"));
  writer.declare("x", DType::u8, {1});
  writer.declare("y", DType::f32, {1});
  writer.declare("z", DType::i64, {1});
  writer.write("x", bytes("x"));
  writer.write("y", bytes("yyyy"));
  writer.write("z", bytes("zzzzzzzz"));
  writer.finish();
  const SafetensorsFile file(scratch.path("a"));
  for (const std::string& name : file.names())
    EXPECT_EQ(file.get(name).ranges[0].offset % size_of(file.get(name).dtype), 0) << name;
}

TEST(Writer, NoTensors) {
  const Scratch scratch;
  SafetensorsWriter(scratch.path("a")).finish();
  EXPECT_TRUE(SafetensorsFile(scratch.path("a")).names().empty());
}

TEST(Writer, RefusesMisuse) {
  const Scratch scratch;
  SafetensorsWriter writer(scratch.path("a"));
  writer.declare("a", DType::u8, {2});
  EXPECT_THROW(writer.declare("a", DType::u8, {2}), Error);
  EXPECT_THROW(writer.declare("__metadata__", DType::u8, {2}), Error);
  EXPECT_THROW(writer.declare("b", DType::u8, {-1}), Error);
  EXPECT_THROW(writer.declare("c", DType::f32, {std::int64_t{1} << 62}), Error);
  EXPECT_THROW(writer.write("d", bytes("1")), Error);
  EXPECT_THROW(writer.write("a", bytes("123")), Error);
  EXPECT_THROW(writer.declare("late", DType::u8, {2}), Error);
  writer.write("a", bytes("1"));
  EXPECT_THROW(writer.finish(), Error);
  writer.write("a", bytes("2"));
  EXPECT_NO_THROW(writer.finish());
}

TEST(Writer, NamesMustBeUtf8) {
  const Scratch scratch;
  SafetensorsWriter writer(scratch.path("a"));
  writer.declare("\xff", DType::u8, {0});
  EXPECT_THROW(writer.finish(), Error);
}

TEST(Writer, AbandonedLeavesNothing) {
  const Scratch scratch;
  {
    SafetensorsWriter writer(scratch.path("a"));
    writer.declare("a", DType::u8, {2});
    writer.write("a", bytes("1"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace floe::writer_test
