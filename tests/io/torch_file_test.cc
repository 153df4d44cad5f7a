// Files of torch.save, written and read by floe itself; test_torch_reference.py has torch as the
// reference.
#include "floe/io/torch_file/torch_file.h"

#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/zip.h"
#include "tests/io/scratch.h"

namespace floe::torch_file_test {
namespace {

using pickle::Value;
using test::Scratch;
using Names = std::vector<std::string>;

template <class Action>
std::string problem(const Action& action) {
  try {
    action();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "it was accepted";
}

void has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << "expected '" << part << "' in: " << text;
}

std::string read(const TensorSource& source, const std::string& name, std::int64_t first,
                 std::int64_t count) {
  const TensorInfo& info = source.get(name);
  std::string out(static_cast<std::size_t>(count * size_of(info.dtype)), '?');
  source.read(info, first, count, std::as_writable_bytes(std::span(out)));
  return out;
}

std::string read(const TensorSource& source, const std::string& name) {
  return read(source, name, 0, source.get(name).numel());
}

void write(TorchFileWriter& writer, const std::string& name, std::string_view bytes) {
  writer.write(name, std::as_bytes(std::span(bytes)));
}

// torch._utils._rebuild_tensor_v2 of one storage with any numbers.
Value view(std::int64_t numel, std::int64_t offset, pickle::Items shape, pickle::Items strides,
           const std::string& storage = "0", const char* storage_class = "ByteStorage") {
  return pickle::reduce(
      pickle::global("torch._utils", "_rebuild_tensor_v2"),
      {pickle::persistent(pickle::tuple(
           {"storage", pickle::global("torch", storage_class), storage, "cpu", Value(numel)})),
       Value(offset), pickle::tuple(std::move(shape)), pickle::tuple(std::move(strides)), false,
       pickle::ordered_dict({})});
}

// An archive with this tree and one storage.
std::string archive(const Scratch& scratch, const Value& root,
                    const std::string& storage = "0123456789ab") {
  ZipWriter zip(scratch.path("x.pt"));
  zip.add("x/data.pkl", pickle::write(root));
  zip.add("x/data/0", storage);
  zip.finish();
  return scratch.path("x.pt");
}

std::string problem_of(const Value& root) {
  const Scratch scratch;
  return problem([&] { TorchFile{archive(scratch, root)}; });
}

TEST(TorchFile, ATrainingState) {
  const Scratch scratch;
  const std::string path = scratch.path("checkpoint_0.pt");
  {
    TorchFileWriter writer(path);
    const Value w = writer.declare("w", DType::u8, {2, 3});
    write(writer, "w", "012");
    const Value b = writer.declare("b", DType::bf16, {2});
    write(writer, "b", "abcd");
    write(writer, "w", "345");
    writer.finish(pickle::dict(
        {{"epoch", 3},
         {"model", pickle::ordered_dict({{"module.w", w}, {"module.tied", w}, {"module.b", b}})},
         {"optimizer", pickle::dict({{"state", pickle::dict({{0, pickle::list({b})}})}})}}));
  }
  const TorchFile file(path);
  EXPECT_EQ(file.names(), (Names{"model.module.b", "model.module.tied", "model.module.w",
                                 "optimizer.state.0.0"}));
  EXPECT_EQ(read(file, "model.module.w"), "012345");
  EXPECT_EQ(read(file, "model.module.tied", 2, 3), "234");
  EXPECT_EQ(read(file, "optimizer.state.0.0", 1, 1), "cd");
  EXPECT_EQ(file.bytes_read(), 6u + 3u + 2u);
  EXPECT_EQ(file.get("model.module.w").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.get("model.module.tied").ranges[0].offset,
            file.get("model.module.w").ranges[0].offset);
  EXPECT_EQ(file.find("epoch"), nullptr);
  EXPECT_FALSE(file.is_torchscript());

  EXPECT_EQ(file.root().find("epoch")->integer(), 3);
  EXPECT_EQ(file.tensor_at(*file.root().find("model")->find("module.tied")),
            file.find("model.module.w"));
  EXPECT_EQ(file.tensor_at(*file.root().find("epoch")), nullptr);

  const TorchFile model(path, "model");
  EXPECT_EQ(model.names(), (Names{"module.b", "module.tied", "module.w"}));
  EXPECT_EQ(read(model, "module.w"), "012345");
  has(problem([&] { TorchFile(path, "modle"); }), "has no tensors under \"modle\"");
}

TEST(TorchFile, MisuseOfTheWriter) {
  const Scratch scratch;
  TorchFileWriter writer(scratch.path("x.pt"));
  const Value a = writer.declare("a", DType::f32, {2});
  EXPECT_THROW(writer.declare("a", DType::f32, {2}), Error);
  EXPECT_THROW(writer.declare("b", DType::f32, {-1}), Error);
  EXPECT_THROW(writer.declare("b", DType::f32, {std::int64_t{1} << 62}), Error);
  EXPECT_THROW(write(writer, "b", "1234"), Error);
  EXPECT_THROW(write(writer, "a", "123456789"), Error);
  write(writer, "a", "1234567");
  EXPECT_THROW(writer.finish(a), Error);
  EXPECT_FALSE(std::filesystem::exists(scratch.path("x.pt")));
}

TEST(TorchFile, ViewsOfAllKinds) {
  const Scratch scratch;
  const TorchFile file(archive(scratch, pickle::dict({
                                            {"whole", view(12, 0, {3, 4}, {4, 1})},
                                            {"rows", view(12, 4, {2, 4}, {4, 1})},
                                            {"transposed", view(12, 0, {4, 3}, {1, 4})},
                                            {"columns", view(12, 1, {3, 2}, {4, 1})},
                                            {"expanded", view(12, 5, {2, 3}, {0, 1})},
                                            {"repeated", view(12, 7, {5}, {0})},
                                            {"ones", view(12, 3, {1, 2, 1}, {99, 1, 99})},
                                            {"permuted", view(12, 0, {2, 2, 3}, {2, 1, 4})},
                                            {"empty", view(12, 99, {0, 5}, {5, 1})},
                                            {"scalar", view(12, 11, {}, {})},
                                        })));
  EXPECT_EQ(read(file, "whole"), "0123456789ab");
  EXPECT_EQ(read(file, "rows"), "456789ab");
  EXPECT_EQ(read(file, "transposed"), "04815926a37b");
  EXPECT_EQ(read(file, "columns"), "12569a");
  EXPECT_EQ(read(file, "expanded"), "567567");
  EXPECT_EQ(read(file, "repeated"), "77777");
  EXPECT_EQ(read(file, "ones"), "34");
  EXPECT_EQ(read(file, "permuted"), "04815926a37b");
  EXPECT_EQ(read(file, "empty"), "");
  EXPECT_EQ(read(file, "scalar"), "b");
  for (const std::string& name : file.names()) {
    const std::string whole = read(file, name);
    const auto numel = static_cast<std::int64_t>(whole.size());
    for (std::int64_t first = 0; first <= numel; ++first)
      for (std::int64_t count = 0; first + count <= numel; ++count)
        EXPECT_EQ(read(file, name, first, count),
                  whole.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(count)))
            << name;
    EXPECT_THROW(read(file, name, numel, 1), DataError);
    EXPECT_THROW(read(file, name, -1, 1), DataError);
  }
}

// A column of a wide table is read element by element, not with all that lies between.
TEST(TorchFile, AColumnCostsItsElements) {
  const Scratch scratch;
  constexpr std::int64_t kRows = 50, kWidth = 100'000;
  std::string table(kRows * kWidth, '.');
  std::string column;
  for (std::int64_t row = 0; row < kRows; ++row)
    column += table[static_cast<std::size_t>(row * kWidth + 7)] = static_cast<char>('A' + row);
  const TorchFile file(
      archive(scratch,
              pickle::dict({{"column", view(kRows * kWidth, 7, {Value(kRows)}, {Value(kWidth)})},
                            {"turned", view(kRows * kWidth, 0, {Value(kWidth), Value(kRows)},
                                            {Value(1), Value(kWidth)})}}),
              table));
  EXPECT_EQ(read(file, "column"), column);
  EXPECT_EQ(file.bytes_read(), static_cast<std::uint64_t>(kRows));
  EXPECT_EQ(read(file, "turned", 7 * kRows, kRows), column);
  const std::string turned = read(file, "turned");
  EXPECT_EQ(turned.substr(7 * kRows, kRows), column);
}

TEST(TorchFile, WhatIsNotReadableIsSaidWhenAskedFor) {
  const Scratch scratch;
  const TorchFile file(archive(
      scratch,
      pickle::dict({
          {"good", view(12, 0, {12}, {1})},
          {"complex", view(12, 0, {1}, {1}, "0", "ComplexFloatStorage")},
          {"sparse", pickle::reduce(pickle::global("torch._utils", "_rebuild_sparse_tensor"), {})},
          {"a.b", view(12, 0, {1}, {1})},
          {"a", pickle::dict({{"b", view(12, 0, {1}, {1})}})},
      })));
  EXPECT_EQ(file.names(), Names{"good"});
  EXPECT_EQ(file.refused().size(), 3u);
  has(problem([&] { file.find("complex"); }),
      "tensor \"complex\" lies in a torch.ComplexFloatStorage; floe reads float64");
  has(problem([&] { file.find("sparse"); }), "is made by torch._utils._rebuild_sparse_tensor");
  has(problem([&] { file.find("a.b"); }), "has a name that another tensor has too");
}

TEST(TorchFile, LiesAboutTensors) {
  const auto in_dict = [](Value value) { return pickle::dict({{"t", std::move(value)}}); };
  const auto reason = [&](Value value) { return problem_of(in_dict(std::move(value))); };
  const std::int64_t large = std::int64_t{1} << 62;
  has(reason(view(12, 0, {13}, {1})), "tensor \"t\" has shape [13], strides [1] and offset 0");
  has(reason(view(12, 1, {12}, {1})), "reach beyond its storage of 12 elements");
  has(reason(view(12, 0, {2}, {-1})), "has -1 as strides; expected an integer from 0");
  has(reason(view(12, -1, {2}, {1})), "has -1 as offset");
  has(reason(view(12, 0, {-2}, {1})), "has -2 as shape");
  has(reason(view(12, 0, {2}, {Value(large)})), "reach beyond its storage");
  has(reason(view(12, large, {2}, {Value(large)})), "reach beyond its storage");
  has(reason(view(12, 0, {3, 3}, {Value(large), Value(large)})), "reach beyond its storage");
  has(reason(view(12, 0, {Value(large), Value(large)}, {0, 0})), "more than 2^63 bytes");
  has(reason(view(12, 0, {Value(large), Value(large), 0}, {0, 0, 0})), "more than 2^63 bytes");
  has(reason(view(12, 0, {2, 2}, {1})), "has shape [2, 2], but strides [1]");
  has(reason(view(13, 0, {2}, {1})),
      "has a storage of 13 elements of uint8, but its zip entry \"x/data/0\" has 12 bytes");
  has(reason(view(12, 0, {2}, {1}, "1")), "in the zip entry \"x/data/1\", which is missing");
  has(reason(view(12, 0, {2}, {1}, "../data/0")), "which is missing");
  has(reason(view(12, 0, {2}, {1}, "0", "FloatStorage")), "has a storage of 12 elements of fp32");
  has(reason(view(12, 0, {"2"}, {1})), "has \"2\" as shape");
  has(reason(pickle::reduce(pickle::global("torch._utils", "_rebuild_tensor_v2"), {1})),
      "is made from 1 values; expected at least 4");
  has(reason(pickle::reduce(pickle::global("torch._utils", "_rebuild_tensor_v2"), {1, 2, 3, 4})),
      "has no storage, but 1");
  has(reason(pickle::reduce(pickle::global("torch._utils", "_rebuild_parameter"), {1})),
      "is a parameter of no tensor");
}

// Each level names the one below twice: 2^60 tensors, were they all to be listed.
TEST(TorchFile, ABombOfNamesIsRefused) {
  Value value = view(12, 0, {2}, {1});
  for (int level = 0; level < 60; ++level) value = pickle::list({value, value});
  has(problem_of(value), "its tree is far larger than the file");
}

TEST(TorchFile, ALongKeyForManyTensorsIsRefused) {
  const Value tensor = view(12, 0, {2}, {1});
  const Value many = pickle::list(pickle::Items(30'000, tensor));
  has(problem_of(pickle::dict({{std::string(30'000, 'k'), many}})), "far larger than the file");
}

TEST(TorchFile, OtherFiles) {
  const Scratch scratch;
  const auto of = [&](const std::string& bytes) {
    const std::string path = scratch.write("y.pt", bytes);
    return problem([&] { TorchFile{path}; });
  };
  has(of(""), "it does not begin like a zip archive");
  has(of(std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.")),
      "has the format of torch before 1.6");
  has(of(std::string(257, '\0') + "ustar"), "has the format of torch before 1.6");
  {
    ZipWriter zip(scratch.path("z.pt"));
    zip.add("z/else", "");
    zip.finish();
  }
  has(problem([&] { TorchFile(scratch.path("z.pt")); }), "has no entry \"z/data.pkl\"");
  {
    ZipWriter zip(scratch.path("z.pt"));
    zip.add("z/data.pkl", pickle::write(Value()));
    zip.add("z/byteorder", "big");
    zip.finish();
  }
  has(problem([&] { TorchFile(scratch.path("z.pt")); }), "big-endian");
}

TEST(TorchFile, EveryTruncationIsRefused) {
  const Scratch scratch;
  archive(scratch, pickle::dict({{"t", view(12, 0, {12}, {1})}}));
  const std::string whole = scratch.read("x.pt");
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(TorchFile(scratch.write("cut", whole.substr(0, length))), DataError) << length;
}

std::string small(const Scratch& scratch, const std::string& name, const std::string& tensor,
                  const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(scratch.path(name)).parent_path());
  TorchFileWriter writer(scratch.path(name));
  const Value value = writer.declare(tensor, DType::u8, {static_cast<std::int64_t>(bytes.size())});
  write(writer, tensor, bytes);
  writer.finish(pickle::dict({{tensor, value}}));
  return scratch.path(name);
}

TEST(OpenTensors, TorchFilesByContent) {
  const Scratch scratch;
  for (const char* name : {"a.pt", "a.bin", "a.pth", "a.ckpt", "without_extension"})
    EXPECT_EQ(read(*open_tensors(small(scratch, name, "t", "abc")), "t"), "abc");
  EXPECT_THROW(open_tensors(scratch.write("b.bin", "no zip")), DataError);
}

// From the last choice to the first.
TEST(OpenTensors, FoldersInTheOrderOfTheLibraries) {
  const Scratch scratch;
  const auto tensor = [&] { return open_tensors(scratch.path("m"))->names().at(0); };
  const auto safetensors = [&](const std::string& name, const std::string& tensor_name) {
    scratch.write(
        "m/" + name,
        test::safetensors_bytes(
            "{\"" + tensor_name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  };
  const auto index = [&](const std::string& name, const std::string& entries) {
    scratch.write("m/" + name, R"({"weight_map": )" + entries + "}");
  };
  scratch.write("m/other.bin", "");
  has(problem(tensor), "name the file itself: other.bin");
  safetensors("open_clip_visual.safetensors", "g");
  EXPECT_EQ(tensor(), "g");
  safetensors("open_clip_text.safetensors", "which of the two?");
  has(problem(tensor), "open_clip_text.safetensors, open_clip_visual.safetensors");
  small(scratch, "m/open_clip_pytorch_model.bin", "f", "x");
  EXPECT_EQ(tensor(), "f");
  safetensors("open_clip_model.safetensors", "e");
  EXPECT_EQ(tensor(), "e");
  small(scratch, "m/pytorch_model-00001-of-00001.bin", "d", "x");
  index("pytorch_model.bin.index.json", R"({"d": "pytorch_model-00001-of-00001.bin"})");
  EXPECT_EQ(tensor(), "d");
  small(scratch, "m/pytorch_model.bin", "c", "x");
  EXPECT_EQ(tensor(), "c");
  safetensors("model-00001-of-00001.safetensors", "b");
  index("model.safetensors.index.json", R"({"b": "model-00001-of-00001.safetensors"})");
  EXPECT_EQ(tensor(), "b");
  safetensors("model.safetensors", "a");
  EXPECT_EQ(tensor(), "a");
  EXPECT_EQ(find_weights(scratch.path("m"), FolderNaming::open_clip),
            scratch.path("m/open_clip_model.safetensors"));
}

TEST(OpenTensors, ShardsOfTorchFiles) {
  const Scratch scratch;
  small(scratch, "m/x.bin", "a", "AAA");
  small(scratch, "m/y.bin", "b", "BB");
  const std::string path = scratch.write("m/pytorch_model.bin.index.json",
                                         R"({"weight_map": {"a": "x.bin", "b": "y.bin"}})");
  const auto source = open_tensors(path);
  EXPECT_EQ(source->names(), (Names{"a", "b"}));
  EXPECT_EQ(read(*source, "a", 1, 2), "AA");
  EXPECT_EQ(read(*source, "b"), "BB");
  EXPECT_EQ(source->bytes_read(), 4u);
  const auto lying = [&](const std::string& weight_map) {
    scratch.write("m/pytorch_model.bin.index.json", R"({"weight_map": )" + weight_map + "}");
    return problem([&] { open_tensors(path); });
  };
  has(lying(R"({"a": "y.bin"})"), "puts tensor \"a\" into");
  has(lying(R"({"a": "z.bin"})"), "but there is no such file: is the download complete?");
  scratch.write("m/x.bin", scratch.read("m/x.bin").substr(0, 300));
  has(lying(R"({"a": "x.bin"})"), "is the file cut off?");
}

TEST(RenamedSource, NamesAndPart) {
  const Scratch scratch;
  const TorchFile views(
      archive(scratch, pickle::dict({{"module.a", view(12, 0, {3}, {1})},
                                     {"module.turned", view(12, 0, {4, 3}, {1, 4})},
                                     {"b", view(12, 9, {3}, {1})}})));
  const std::shared_ptr<const TensorSource> source(&views, [](const auto*) {});
  EXPECT_EQ(names_below(*source, "module."),
            (Renames{{"a", "module.a"}, {"turned", "module.turned"}}));
  const RenamedSource renamed(source,
                              {{"x", "module.a"}, {"y", "module.turned"}, {"z", "module.a"}});
  EXPECT_EQ(renamed.names(), (Names{"x", "y", "z"}));
  EXPECT_EQ(renamed.find("module.a"), nullptr);
  EXPECT_EQ(renamed.get("y").name, "y");
  EXPECT_EQ(read(renamed, "x", 1, 2), "12");
  EXPECT_EQ(read(renamed, "y"), "04815926a37b");
  EXPECT_EQ(read(renamed, "z"), "012");
  EXPECT_EQ(renamed.bytes_read(), source->bytes_read());
  EXPECT_THROW(renamed.read(source->get("b"), 0, 0, {}), DataError);
  has(problem([&] { RenamedSource(source, {{"x", "modul.a"}}); }), "did you mean 'module.a'");
}

TEST(MergedSource, TheFirstWins) {
  const Scratch scratch;
  const std::shared_ptr<const TensorSource> one = open_tensors(small(scratch, "1.pt", "a", "1")),
                                            two = open_tensors(small(scratch, "2.pt", "a", "2")),
                                            three = open_tensors(small(scratch, "3.pt", "b", "3"));
  const MergedSource merged({one, two, three});
  EXPECT_EQ(merged.names(), (Names{"a", "b"}));
  EXPECT_EQ(read(merged, "a"), "1");
  EXPECT_EQ(read(merged, "b"), "3");
  EXPECT_EQ(merged.bytes_read(), 2u);
  EXPECT_EQ(merged.find("c"), nullptr);
}

}  // namespace
}  // namespace floe::torch_file_test
