#include "floe/data/sources/text_files.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/input_stream.h"

namespace floe::data {
namespace {

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::int64_t kMostLineBytes = 256 * kMiB;

bool is_blank(const std::vector<std::byte>& line) {
  return std::all_of(line.begin(), line.end(), [](std::byte byte) {
    const char c = static_cast<char>(byte);
    return c == ' ' || c == '\t' || c == '\r';
  });
}

// The lines of a file of JSON lines as members of a shard.
class TextLines : public MemberSource {
 public:
  TextLines(const std::string& where, const std::atomic<bool>* stop)
      : where_(where), stream_(open_input(where, stop)), buffer_(kBufferBytes) {}
  bool next(TarEntry& entry) override;

 private:
  bool next_line(std::vector<std::byte>& line);

  std::string where_;
  std::unique_ptr<InputStream> stream_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is unread in buffer_
  std::int64_t number_ = 0;          // of the line before
  bool ended_ = false;
};

bool TextLines::next(TarEntry& entry) {
  do {
    if (!next_line(entry.data)) return false;
  } while (is_blank(entry.data));
  entry.name = str(number_, ".jsonl");
  return true;
}

bool TextLines::next_line(std::vector<std::byte>& line) {
  line.clear();
  if (ended_) return false;
  ++number_;
  try {
    for (;;) {
      const std::byte* first = buffer_.data() + begin_;
      const void* newline = std::memchr(first, '\n', end_ - begin_);
      const std::byte* last =
          newline ? static_cast<const std::byte*>(newline) : buffer_.data() + end_;
      require<DataError>(static_cast<std::int64_t>(line.size()) + (last - first) <= kMostLineBytes,
                         "it is longer than the ", format_bytes(kMostLineBytes),
                         " that a line may have");
      line.insert(line.end(), first, last);
      begin_ += static_cast<std::size_t>(last - first);
      if (newline) {
        ++begin_;
        return true;
      }
      begin_ = 0;
      end_ = stream_->read(buffer_);
      if (end_ > 0) continue;
      ended_ = true;
      stream_->finish();
      return !line.empty();
    }
  } catch (const DataError& error) {
    ended_ = true;
    throw DataError(str("file '", where_, "', line ", number_, ": ", error.what()));
  }
}

}  // namespace

bool is_json_lines(const std::string& where) {
  return where.find(".jsonl") != std::string::npos || where.find(".ndjson") != std::string::npos;
}

std::unique_ptr<MemberSource> open_text(const std::string& where, const std::atomic<bool>* stop) {
  if (!is_json_lines(where)) return open_tar(where, stop);
  return std::make_unique<TextLines>(where, stop);
}

}  // namespace floe::data
