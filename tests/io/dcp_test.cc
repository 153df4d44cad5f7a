// Directories of torch.distributed.checkpoint that floe's own classes make; test_dcp_reference.py
// has torch as the reference.
#include "floe/io/dcp/dcp.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "floe/core/error.h"
#include "floe/io/tensors/open_tensors.h"
#include "tests/io/dcp_directory_maker.h"

namespace floe::dcp_test {
namespace {

using test::Scratch;
using test::Sizes;

std::string problem(const std::function<void()>& action) {
  try {
    action();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "it was accepted";
}

void has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << "expected '" << part << "' in: " << text;
}

std::int64_t numel(const Sizes& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

using Random = std::mt19937;
std::int64_t pick(Random& random, std::int64_t from, std::int64_t to) {
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

// Cuts a box at random places, along random dimensions.
void cut(Random& random, const DcpChunk& box, int depth, std::vector<DcpChunk>& chunks) {
  const auto dims = static_cast<std::int64_t>(box.sizes.size());
  if (depth == 0 || dims == 0) return chunks.push_back(box);
  const auto d = static_cast<std::size_t>(pick(random, 0, dims - 1));
  const std::int64_t at = pick(random, 0, box.sizes[d]);
  DcpChunk low = box, high = box;
  low.sizes[d] = at;
  high.offsets[d] += at;
  high.sizes[d] -= at;
  cut(random, low, depth - 1, chunks);
  cut(random, high, depth - 1, chunks);
}

Sizes random_shape(Random& random) {
  Sizes shape(static_cast<std::size_t>(pick(random, 0, 4)));
  for (std::int64_t& size : shape) size = pick(random, 0, 7);
  return shape;
}

std::vector<DcpChunk> random_chunks(Random& random, const Sizes& shape) {
  std::vector<DcpChunk> chunks;
  cut(random, {Sizes(shape.size(), 0), shape, {}}, static_cast<int>(pick(random, 0, 4)), chunks);
  return chunks;
}

// Element number -> place along each dimension.
Sizes place_of(const Sizes& shape, std::int64_t element) {
  Sizes place(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; element /= shape[d]) place[d] = element % shape[d];
  return place;
}

bool inside(const DcpChunk& chunk, const Sizes& place) {
  for (std::size_t d = 0; d < place.size(); ++d)
    if (place[d] < chunk.offsets[d] || place[d] >= chunk.offsets[d] + chunk.sizes[d]) return false;
  return true;
}

TEST(DcpChunk, ElementsAndRunsAreThoseOfACount) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const Sizes shape = random_shape(random);
    for (const DcpChunk& chunk : random_chunks(random, shape)) {
      if (chunk.numel() == 0) continue;
      std::vector<std::int64_t> members;  // elements of the tensor that the chunk has, in order
      for (std::int64_t e = 0; e <= numel(shape); ++e) {
        ASSERT_EQ(elements_before(chunk, shape, e), static_cast<std::int64_t>(members.size()));
        if (e < numel(shape) && inside(chunk, place_of(shape, e))) members.push_back(e);
      }
      const std::int64_t first = pick(random, 0, chunk.numel() - 1);
      const std::int64_t count = pick(random, 0, chunk.numel() - first);
      std::vector<std::int64_t> seen;
      for_each_run(chunk, shape, first, count, [&](auto in_chunk, auto in_tensor, auto length) {
        ASSERT_EQ(in_chunk, first + static_cast<std::int64_t>(seen.size()));
        for (std::int64_t i = 0; i < length; ++i) seen.push_back(in_tensor + i);
      });
      ASSERT_EQ(seen, std::vector(members.begin() + first, members.begin() + first + count));
      ASSERT_EQ(place_in_tensor(chunk, shape, first), members[static_cast<std::size_t>(first)]);
    }
  }
}

TEST(DcpChunk, TidyAcceptsTilingsOnly) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const Sizes shape = random_shape(random);
    std::vector<DcpChunk> chunks = random_chunks(random, shape);
    std::shuffle(chunks.begin(), chunks.end(), random);
    auto tidy = chunks;
    tidy.insert(tidy.end(), chunks.begin(), chunks.end());  // replicas
    ASSERT_EQ(tidy_chunks(shape, tidy), "");
    for (const DcpChunk& chunk : tidy) ASSERT_GT(chunk.numel(), 0);
    if (tidy.empty()) continue;
    auto hole = tidy;
    hole.pop_back();
    has(tidy_chunks(shape, hole), "a rank's part was not saved");
    if (tidy.size() < 2 || shape.empty()) continue;
    auto overlapping = tidy;
    overlapping.push_back({Sizes(shape.size(), 0), shape, {}});
    has(tidy_chunks(shape, overlapping), "overlap");
  }
  std::vector<DcpChunk> outside{{{2}, {3}, {}}};
  has(tidy_chunks({4}, outside), "lies outside");
  std::vector<DcpChunk> flat{{{0}, {4}, {}}};
  has(tidy_chunks({2, 2}, flat), "lies outside");
}

// A directory with tensors of one file per rank, each a random tiling with random bytes.
class Directory {
 public:
  explicit Directory(Random& random) : random_(random) {}

  void add(const std::string& name, DType dtype, const char* torch_name, const Sizes& shape) {
    std::string bytes(static_cast<std::size_t>(numel(shape) * size_of(dtype)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(pick(random_, 0, 255));
    const std::vector<DcpChunk> chunks = random_chunks(random_, shape);
    for (const DcpChunk& chunk : chunks) add_chunk(name, dtype, shape, chunk, bytes);
    tensors_.emplace_back(name, test::tensor_entry(torch_name, shape, chunks));
    expected[name] = bytes;
  }

  void write() const {
    for (const auto& [file, bytes] : files_) scratch.write("ckpt/" + file, bytes);
    scratch.write("ckpt/.metadata", pickle::write(test::metadata_value(tensors_, places_)));
  }
  std::string path() const { return scratch.path("ckpt"); }

  Scratch scratch;
  std::map<std::string, std::string> expected;

 private:
  void add_chunk(const std::string& name, DType dtype, const Sizes& shape, const DcpChunk& chunk,
                 const std::string& bytes) {
    const auto size = static_cast<std::size_t>(size_of(dtype));
    std::string part;
    for (std::int64_t e = 0; e < numel(shape); ++e)
      if (inside(chunk, place_of(shape, e)))
        part += bytes.substr(static_cast<std::size_t>(e) * size, size);
    const std::string file = str("__", pick(random_, 0, 2), "_0.distcp");
    const std::string item = test::tensor_item(scratch, dtype, chunk.sizes, part);
    std::string& all = files_[file];
    places_.emplace_back(test::index_entry(name, chunk.offsets),
                         test::place_entry(file, static_cast<std::int64_t>(all.size()),
                                           static_cast<std::int64_t>(item.size())));
    all += item;
  }

  Random& random_;
  std::map<std::string, std::string> files_;
  pickle::Entries tensors_, places_;
};

TEST(DcpDirectory, AnyRangeOfAnyTilingIsRead) {
  Random random(3);
  Directory made(random);
  const std::pair<DType, const char*> types[] = {{DType::f32, "float32"},
                                                 {DType::bf16, "bfloat16"},
                                                 {DType::i64, "int64"},
                                                 {DType::boolean, "bool"}};
  for (int i = 0; i < 60; ++i)
    made.add(str("t", i), types[i % 4].first, types[i % 4].second, random_shape(random));
  made.write();
  const auto source = open_tensors(made.path());
  EXPECT_EQ(source->names().size(), made.expected.size());
  for (const auto& [name, bytes] : made.expected) {
    const TensorInfo& info = source->get(name);
    const std::int64_t size = size_of(info.dtype);
    for (int round = 0; round < 20; ++round) {
      const std::int64_t first = round == 0 ? 0 : pick(random, 0, info.numel());
      const std::int64_t count = round == 0 ? info.numel() : pick(random, 0, info.numel() - first);
      std::string out(static_cast<std::size_t>(count * size), '?');
      const std::uint64_t before = source->bytes_read();
      source->read(info, first, count, std::as_writable_bytes(std::span(out)));
      ASSERT_EQ(out, bytes.substr(static_cast<std::size_t>(first * size), out.size())) << name;
      ASSERT_EQ(source->bytes_read() - before, out.size());
    }
  }
}

// One tensor of two rows in two chunks, with one thing changed.
struct Small {
  Scratch scratch;
  pickle::Entries tensors, places;
  std::string file;

  Small() {
    std::vector<DcpChunk> chunks;
    for (std::int64_t row = 0; row < 2; ++row) {
      const std::string item =
          test::tensor_item(scratch, DType::f32, {1, 3}, std::string(12, static_cast<char>(row)));
      chunks.push_back({{row, 0}, {1, 3}, {}});
      places.emplace_back(test::index_entry("w", {row, 0}),
                          test::place_entry("__0_0.distcp", static_cast<std::int64_t>(file.size()),
                                            static_cast<std::int64_t>(item.size())));
      file += item;
    }
    tensors.emplace_back("w", test::tensor_entry("float32", {2, 3}, chunks));
  }
  std::string refusal() const {
    return problem([&] {
      std::filesystem::create_directory(scratch.path("ckpt"));
      if (!file.empty()) scratch.write("ckpt/__0_0.distcp", file);
      scratch.write("ckpt/.metadata", pickle::write(test::metadata_value(tensors, places)));
      const DcpDirectory directory(scratch.path("ckpt"));
      for (const std::string& name : directory.names()) {
        const TensorInfo& info = directory.get(name);
        std::vector<std::byte> out(static_cast<std::size_t>(info.bytes()));
        directory.read(info, 0, info.numel(), out);
      }
    });
  }
};

TEST(DcpDirectory, DefectsAreNamed) {
  EXPECT_EQ(Small().refusal(), "it was accepted");
  {
    Small small;
    small.file.clear();
    has(small.refusal(), "lacks the file '__0_0.distcp'");
  }
  {
    Small small;
    small.file.pop_back();
    has(small.refusal(), "it is cut off");
  }
  {
    Small small;
    small.places.pop_back();
    has(small.refusal(), "does not say where the chunk at [1, 0] of tensor \"w\" lies");
  }
  {
    Small small;
    small.tensors[0].second = test::tensor_entry("float32", {2, 3}, {{{0, 0}, {1, 3}, {}}});
    has(small.refusal(), "hold only 3 of them");
  }
  {
    Small small;
    small.tensors[0].second =
        test::tensor_entry("float32", {2, 3}, {{{0, 0}, {2, 3}, {}}, {{1, 0}, {1, 3}, {}}});
    has(small.refusal(), "chunks that overlap");
  }
  {
    Small small;
    small.tensors[0].second = test::tensor_entry("float32", {1, 3}, {{{0, 0}, {2, 3}, {}}});
    has(small.refusal(), "lies outside of it");
  }
  {
    Small small;  // the items have one row each
    small.tensors[0].second = test::tensor_entry("float32", {2, 3}, {{{0, 0}, {2, 3}, {}}});
    has(small.refusal(), "is a tensor of fp32 [1, 3], but .metadata says fp32 [2, 3]");
  }
  {
    Small small;
    small.tensors[0].second =
        test::tensor_entry("int32", {2, 3}, {{{0, 0}, {1, 3}, {}}, {{1, 0}, {1, 3}, {}}});
    has(small.refusal(), "but .metadata says int32");
  }
  {
    Small small;
    small.file.replace(0, 200, 200, 'x');
    has(small.refusal(), "is damaged at \"w\"");
  }
  {
    Small small;
    small.places[0].second = test::place_entry("../secret", 0, 10);
    has(small.refusal(), "expected a file inside of the checkpoint");
  }
  {
    Small small;
    small.places[0].second = test::place_entry("__0_0.distcp", 0, std::int64_t{1} << 62);
    has(small.refusal(), "it is cut off");
  }
  {
    Small small;
    const Sizes huge(3, std::int64_t{1} << 40);
    small.tensors[0].second = test::tensor_entry("float32", huge, {});
    has(small.refusal(), "more than 2^63 bytes");
  }
  {
    Small small;
    small.places[0].second =
        test::dcp_object("_StorageInfo",
                         {{"relative_path", "__0_0.distcp"},
                          {"offset", 0},
                          {"length", 10},
                          {"transform_descriptors", pickle::list({"stream.zstd"})}},
                         "torch.distributed.checkpoint.filesystem");
    has(small.refusal(), "was transformed on its way to the disk");
  }
}

TEST(DcpMetadata, DefectsAreNamed) {
  const auto refusal = [](const pickle::Value& value) {
    return problem([&] { parse_dcp_metadata(pickle::write(value), "x/.metadata"); });
  };
  has(refusal(pickle::Value(3)), "is no metadata of torch.distributed.checkpoint");
  has(refusal(test::dcp_object("Metadata", {})), "lacks the field 'storage_data'");
  has(refusal(test::dcp_object("Metadata", {{"storage_data", pickle::dict({})}})),
      "lacks the field 'state_dict_metadata'");
  has(refusal(test::metadata_value({{"a", test::dcp_object("BytesStorageMetadata", {})}}, {})),
      "does not say where \"a\" lies");
  has(refusal(test::metadata_value({{"a", "text"}}, {})), "expected a tensor or an object");
  has(refusal(test::metadata_value({}, {{"a", "b"}})), "among its places of data");
  has(problem([] { parse_dcp_metadata("\x80\x04garbage", "x/.metadata"); }), "x/.metadata");
  const Scratch scratch;
  has(problem([&] { read_dcp_metadata(scratch.path()); }), "has no file .metadata");
}

// A pickle may name one list of chunks a million times.
TEST(DcpMetadata, SharedListsTakeNoMemory) {
  std::vector<DcpChunk> many(2000, DcpChunk{{0}, {0}, {}});
  const pickle::Value shared = test::tensor_entry("float32", {0}, many);
  pickle::Entries tensors;
  for (int i = 0; i < 3000; ++i) tensors.emplace_back(str("t", i), shared);
  pickle::Entries places;
  for (int i = 0; i < 3000; ++i)
    places.emplace_back(test::index_entry(str("t", i), {0}), test::place_entry("f", 0, 0));
  has(problem(
          [&] { parse_dcp_metadata(pickle::write(test::metadata_value(tensors, places)), "m"); }),
      "more chunks than bytes");
}

TEST(DcpMetadata, ATensorOfAnUnknownTypeIsRefusedAlone) {
  Small small;
  small.tensors.emplace_back(
      "c", test::tensor_entry("complex64", {2, 3}, {{{0, 0}, {1, 3}, {}}, {{1, 0}, {1, 3}, {}}}));
  for (std::int64_t row = 0; row < 2; ++row)
    small.places.emplace_back(test::index_entry("c", {row, 0}), small.places[0].second);
  EXPECT_EQ(small.refusal(), "it was accepted");
  const DcpDirectory directory(small.scratch.path("ckpt"));
  EXPECT_EQ(directory.names(), std::vector<std::string>{"w"});
  has(problem([&] { directory.find("c"); }), "has dtype torch.complex64");
}

}  // namespace
}  // namespace floe::dcp_test
