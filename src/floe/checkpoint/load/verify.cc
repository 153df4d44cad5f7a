#include "floe/checkpoint/load/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/save/rank_files.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/io/file/file.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlock = 256 << 10;  // stays in the cache between read and checksum
// Elements of a tensor that a digest takes at its beginning, in its middle and at its end.
constexpr std::int64_t kSampled = 16;

std::string folder_of(const std::string& checkpoint) {
  if (fs::is_directory(checkpoint)) return checkpoint;
  const std::string parent = fs::path(checkpoint).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::int64_t size_on_disk(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  require<CheckpointError>(!error, "'", path, "' of the checkpoint is missing (", error.message(),
                           ")");
  return static_cast<std::int64_t>(size);
}

// Ranges must follow each other and fill the file.
void check_cover(const std::string& path, std::vector<CheckedRange>& ranges, std::int64_t bytes) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::int64_t at = 0;
  for (const CheckedRange& range : ranges) {
    require<CheckpointError>(
        range.offset == at && range.length >= 0 && range.length <= bytes - at, "'", path,
        "': the checksums do not cover byte ", at,
        "; the checkpoint was not written by this version of floe or is damaged");
    at += range.length;
  }
  require<CheckpointError>(at == bytes, "'", path, "': the checksums do not cover byte ", at);
}

void check_range(const std::string& folder, const CheckedRange& range, const File& file) {
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(range.length, kBlock)));
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < range.length;) {
    const auto part = std::span(block).first(
        static_cast<std::size_t>(std::min<std::int64_t>(range.length - at, kBlock)));
    file.read_at(range.offset + at, part);
    crc = crc32(part, crc);
    at += static_cast<std::int64_t>(part.size());
  }
  require<CheckpointError>(crc == range.crc, "'", folder, "/", range.file, "' is damaged",
                           range.what.empty() ? "" : " in ", range.what, ": bytes ", range.offset,
                           " to ", range.offset + range.length,
                           " do not have the checksum they were written with");
}

}  // namespace

std::vector<CheckedRange> ranges_of(const std::string& checkpoint, const Manifest& manifest) {
  const std::string folder = folder_of(checkpoint);
  std::map<std::string, std::vector<CheckedRange>> by_file;
  for (const CheckedRange& range : manifest.ranges) by_file[range.file].push_back(range);
  if (manifest.layout == Layout::sharded) {
    for (int rank = 0; rank < manifest.world_size; ++rank) {
      if (!manifest.file_bytes.contains(manifest_file(rank))) continue;  // it died before this save
      const RankManifest of_rank = read_rank_manifest(folder, rank);
      auto& ranges = by_file[data_file(rank)];
      for (const RankTensor& tensor : of_rank.tensors)
        for (const RankChunk& chunk : tensor.chunks)
          ranges.push_back({data_file(rank), chunk.offset, chunk.length, chunk.crc,
                            str("'", join(tensor.path, "."), "'")});
      for (const RankObject& object : of_rank.objects)
        ranges.push_back({data_file(rank), object.offset, object.length, object.crc,
                          str("'", object.name, "'")});
    }
  }
  std::vector<CheckedRange> all;
  for (const auto& [file, bytes] : manifest.file_bytes) {
    const std::string path = str(folder, "/", file);
    const std::int64_t found = size_on_disk(path);
    require<CheckpointError>(found == bytes, "'", path, "' has ", found, " bytes, but ", bytes,
                             " were written");
    check_cover(path, by_file[file], bytes);
    all.insert(all.end(), by_file[file].begin(), by_file[file].end());
  }
  return all;
}

void verify(const std::string& checkpoint, const std::vector<CheckedRange>& ranges, int part,
            int parts) {
  const std::string folder = folder_of(checkpoint);
  std::int64_t total = 0, before = 0;
  for (const CheckedRange& range : ranges) total += range.length + 1;
  std::unique_ptr<File> file;
  for (const CheckedRange& range : ranges) {
    const bool mine = static_cast<int>(before * parts / std::max<std::int64_t>(total, 1)) == part;
    before += range.length + 1;
    if (!mine) continue;
    const std::string path = str(folder, "/", range.file);
    try {
      if (!file || file->path() != path) file = std::make_unique<File>(path);
      check_range(folder, range, *file);
    } catch (const DataError& e) {
      throw CheckpointError(e.what());
    }
  }
}

std::string weights_digest(const TensorSource& weights) {
  Sha256 hash;
  const auto add = [&](const std::string& text) { hash.add(std::as_bytes(std::span(text))); };
  for (const std::string& name : weights.names()) {
    const TensorInfo& info = weights.get(name);
    add(str(name, "\n", name_of(info.dtype), "\n", join(info.shape), "\n"));
    const std::int64_t numel = info.numel(), count = std::min(kSampled, numel);
    for (const std::int64_t first : {std::int64_t{0}, (numel - count) / 2, numel - count}) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(info.dtype)));
      weights.read(info, first, count, bytes);
      hash.add(bytes);
    }
  }
  return hash.finish_hex();
}

}  // namespace floe::checkpoint
