// Well-formed safetensors: files, folders, indices.
#include "floe/io/safetensors/safetensors.h"

#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/io/tensors/open_tensors.h"
#include "tests/io/scratch.h"

namespace floe::safetensors_test {
namespace {

using test::safetensors_bytes;
using test::Scratch;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "(no DataError)";
}

std::string read_bytes(const TensorSource& source, const std::string& name, std::int64_t first,
                       std::int64_t count) {
  const TensorInfo& info = source.get(name);
  std::string out(static_cast<std::size_t>(count * size_of(info.dtype)), '?');
  source.read(info, first, count, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(Safetensors, ReadsWhatTheHeaderSays) {
  const Scratch scratch;
  const SafetensorsFile file(scratch.write(
      "a.safetensors",
      safetensors_bytes(R"({"__metadata__":{"format":"pt"},)"
                        R"("b":{"dtype":"I16","shape":[2],"data_offsets":[0,4]},)"
                        R"("a":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]},)"
                        R"("s":{"dtype":"F32","shape":[],"data_offsets":[10,14]},)"
                        R"("none":{"dtype":"BF16","shape":[0,5],"data_offsets":[14,14]}}  )",
                        "BBBBaaaaaaSSSS")));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b", "none", "s"}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.get("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.get("a").dtype, DType::u8);
  EXPECT_EQ(file.get("s").numel(), 1);
  EXPECT_EQ(file.get("s").bytes(), 4);
  EXPECT_EQ(read_bytes(file, "b", 0, 2), "BBBB");
  EXPECT_EQ(read_bytes(file, "a", 0, 6), "aaaaaa");
  EXPECT_EQ(read_bytes(file, "s", 0, 1), "SSSS");
  EXPECT_EQ(read_bytes(file, "none", 0, 0), "");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, AnEmptyFileOfTensors) {
  const Scratch scratch;
  EXPECT_TRUE(SafetensorsFile(scratch.write("a", safetensors_bytes("{}", ""))).names().empty());
}

TEST(Safetensors, ReadsOnlyTheRangeAskedFor) {
  const Scratch scratch;
  const std::string path = scratch.path("a.safetensors");
  SafetensorsWriter writer(path);
  writer.declare("w", DType::i64, {1000});
  std::vector<std::int64_t> numbers(1000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i);
  writer.write("w", std::as_bytes(std::span(numbers)));
  writer.finish();

  const SafetensorsFile file(path);
  EXPECT_EQ(file.bytes_read(), 0u);  // the header does not count
  std::vector<std::int64_t> slice(250);
  file.read(file.get("w"), 500, 250, std::as_writable_bytes(std::span(slice)));
  EXPECT_EQ(slice.front(), 500);
  EXPECT_EQ(slice.back(), 749);
  EXPECT_EQ(file.bytes_read(), 2000u);
}

TEST(Safetensors, ReadsGoThroughTheOpenFile) {
  const Scratch scratch;
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  const std::string path = scratch.write("a", safetensors_bytes(header, "old"));
  const SafetensorsFile file(path);
  write_file_atomically(path, safetensors_bytes(header, "new"));
  EXPECT_EQ(read_bytes(file, "a", 0, 3), "old");
}

std::string one_tensor(const std::string& name, const std::string& data) {
  return safetensors_bytes(str("{\"", name, "\":{\"dtype\":\"U8\",\"shape\":[", data.size(),
                               "],\"data_offsets\":[0,", data.size(), "]}}"),
                           data);
}

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    scratch.write("m/x.safetensors", one_tensor("a", "AAA"));
    scratch.write("m/y.safetensors", one_tensor("b", "BB"));
  }
  std::string index(const std::string& weight_map) {
    return scratch.write("m/model.safetensors.index.json",
                         R"({"metadata": {"total_size": 5}, "weight_map": )" + weight_map + "}");
  }
  Scratch scratch;
};

TEST_F(Folder, IndexAndShards) {
  const std::string path = index(R"({"b": "y.safetensors", "a": "x.safetensors"})");
  for (const std::string& place : {path, scratch.path("m")}) {
    const auto source = open_tensors(place);
    EXPECT_EQ(source->names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(read_bytes(*source, "a", 1, 2), "AA");
    EXPECT_EQ(read_bytes(*source, "b", 0, 2), "BB");
    EXPECT_EQ(source->bytes_read(), 4u);
    EXPECT_EQ(source->find("c"), nullptr);
  }
}

TEST_F(Folder, TheIndexSaysWhatExists) {
  EXPECT_EQ(open_tensors(index(R"({"b": "y.safetensors"})"))->names(),
            std::vector<std::string>{"b"});
}

TEST_F(Folder, ASingleFileWins) {
  index(R"({"b": "y.safetensors"})");
  scratch.write("m/model.safetensors", one_tensor("single", "S"));
  EXPECT_EQ(open_tensors(scratch.path("m"))->names(), std::vector<std::string>{"single"});
}

TEST_F(Folder, OneFileByName) {
  EXPECT_EQ(open_tensors(scratch.path("m/x.safetensors"))->names(), std::vector<std::string>{"a"});
}

TEST_F(Folder, DefectsOfIndices) {
  const auto problem = [&](const std::string& weight_map) {
    return message_of([&] { open_tensors(index(weight_map)); });
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << "expected '" << part << "' in: " << text;
  };
  has(problem(R"({"c": "x.safetensors"})"), "puts tensor \"c\" into");
  has(problem(R"({"a": "gone.safetensors"})"), "but there is no such file");
  has(problem(R"({"a": "model.safetensors.index.json"})"), "must be a file of tensors");
  has(problem(R"({"a": "../m/x.safetensors"})"), "must be a file of tensors beside");
  has(problem(R"({"a": "/etc/passwd"})"), "must be a file of tensors beside");
  has(problem(R"({"a": ""})"), "must be a file of tensors beside");
  has(problem(R"({"a": 5})"), "must be a file name, not 5");
  has(problem(R"({"a": "x.safetensors", "a": "y.safetensors"})"), "has the key \"a\" twice");
  has(problem("{}"), "non-empty \"weight_map\"");
  has(problem("[]"), "non-empty \"weight_map\"");
  has(problem("{"), "not valid JSON");
}

TEST_F(Folder, AFolderWithoutTheUsualNames) {
  const std::string text = message_of([&] { open_tensors(scratch.path("m")); });
  EXPECT_NE(text.find("neither model.safetensors nor pytorch_model.bin"), text.npos) << text;
  EXPECT_THROW(open_tensors(scratch.path("nowhere")), DataError);
}

}  // namespace
}  // namespace floe::safetensors_test
