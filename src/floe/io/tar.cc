#include "floe/io/tar.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/tar_header.h"
#include "floe/io/tar_stream.h"

namespace floe {
namespace {

constexpr std::uint64_t kMostMemberBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kMostHeaderBytes = std::uint64_t{1} << 20;  // long names, pax records
constexpr std::size_t kBufferBytes = 64 * 1024;

std::uint64_t padded(std::uint64_t size) { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }

}  // namespace

// Reads what Python's tarfile reads, in its order, so that a shard holds the same samples here:
// the first block of zeros ends the archive, and so does the end of the file between members.
class TarReader::Impl {
 public:
  explicit Impl(const std::string& where) : where_(where), buffer_(kBufferBytes) {}

  bool next(TarEntry& entry) {
    if (done_) return false;
    done_ = true;  // unless this call goes well
    try {
      if (!stream_) stream_ = open_tar_stream(where_);
      if (!next_file(entry)) {
        stream_->finish();
        return false;
      }
    } catch (const DataError& error) {
      throw DataError(str("shard '", where_, "', at byte ", offset_, ": ", error.what()));
    }
    done_ = false;
    return true;
  }

  std::uint64_t position() const { return position_; }
  void open() { stream_ = open_tar_stream(where_); }

 private:
  // What headers before a member say about it. The first one wins.
  struct Overrides {
    std::optional<std::string> name;
    std::optional<std::uint64_t> size;
  };

  bool next_file(TarEntry& entry) {
    for (;;) {
      skip(skip_before_next_);
      skip_before_next_ = 0;
      const std::uint64_t begin = offset_;
      TarBlock block;
      const std::size_t got = read(block);
      if (got == 0 && begin > 0) return false;
      require<DataError>(got > 0, "the file is empty");
      require<DataError>(got == kTarBlock, "the archive is cut off in a header");
      if (is_zero(block)) return false;
      if (!read_member(block, entry)) continue;
      position_ = begin;
      return true;
    }
  }

  // A member with all headers that belong to it; false when it is not a regular file.
  bool read_member(TarBlock block, TarEntry& entry) {
    Overrides overrides;
    PaxFields extended = global_;
    bool has_extended = false;
    for (;;) {
      std::optional<TarHeader> header = parse_tar_header(block);
      require<DataError>(header.has_value(), "what should be a header is none");
      switch (header->kind) {
        case TarHeader::Kind::long_name: {
          std::string name = tar_text(read_header_data(header->size));
          if (!overrides.name) overrides.name = std::move(name);
          break;
        }
        case TarHeader::Kind::long_link: read_header_data(header->size); break;
        case TarHeader::Kind::pax: {
          PaxFields fields = global_;
          read_pax(header->size, fields);
          extended = fields;
          has_extended = true;
          if (fields.path && !overrides.name) overrides.name = fields.path;
          if (fields.size && !overrides.size) overrides.size = fields.size;
          break;
        }
        case TarHeader::Kind::pax_global: read_pax(header->size, global_); break;
        default: {
          const PaxFields& fields = has_extended ? extended : global_;
          if (global_.path && !overrides.name) overrides.name = global_.path;
          require<DataError>(!fields.sparse && header->kind != TarHeader::Kind::sparse, "member ",
                             quoted(overrides.name.value_or(header->name)),
                             " is stored as a sparse file, which is not supported: write the "
                             "archive without --sparse");
          return take_member(*header, overrides, entry);
        }
      }
      require<DataError>(read(block) == kTarBlock && !is_zero(block),
                         "the archive ends behind the header of a long name or of extended fields");
    }
  }

  bool take_member(const TarHeader& header, const Overrides& overrides, TarEntry& entry) {
    if (header.kind == TarHeader::Kind::bare) return false;
    const std::uint64_t size = overrides.size.value_or(global_.size.value_or(header.size));
    if (header.kind != TarHeader::Kind::file) {
      skip_before_next_ = padded(std::min(size, std::numeric_limits<std::uint64_t>::max() / 2));
      return false;
    }
    entry.name = overrides.name.value_or(header.name);
    require<DataError>(size <= kMostMemberBytes, "member ", quoted(entry.name), " has ", size,
                       " bytes, more than the ", kMostMemberBytes, " that one may have");
    read_data(size, entry.data);
    require<DataError>(entry.data.size() == size, "the archive is cut off in member ",
                       quoted(entry.name), ": ", entry.data.size(), " of ", size, " bytes");
    skip_before_next_ = padded(size) - size;
    return true;
  }

  std::vector<std::byte> read_header_data(std::uint64_t size) {
    require<DataError>(size <= kMostHeaderBytes, "a header has ", size,
                       " bytes of names or fields, more than the ", kMostHeaderBytes,
                       " that one may have");
    std::vector<std::byte> data;  // with its padding, in which Python looks too
    read_data(padded(size), data);
    return data;
  }

  void read_pax(std::uint64_t size, PaxFields& fields) {
    require<DataError>(parse_pax(read_header_data(size), fields), "a pax header is damaged");
  }

  // Never takes much more memory than the stream has bytes, whatever the header says.
  void read_data(std::uint64_t size, std::vector<std::byte>& out) {
    constexpr std::uint64_t kStep = 16U << 20;
    out.clear();
    while (out.size() < size) {
      const std::size_t begin = out.size();
      out.resize(begin + static_cast<std::size_t>(std::min<std::uint64_t>(size - begin, kStep)));
      const std::size_t got = read(std::span(out).subspan(begin));
      if (begin + got == out.size()) continue;
      out.resize(begin + got);
      return;
    }
  }

  // Fills `out`, or less at the end of the stream.
  std::size_t read(std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      if (begin_ == end_) {
        // Large members go to their place without a detour.
        if (out.size() - done >= kBufferBytes) {
          const std::size_t got = stream_->read(out.subspan(done));
          if (got == 0) break;
          done += got;
          continue;
        }
        begin_ = 0;
        end_ = stream_->read(buffer_);
        if (end_ == 0) break;
      }
      const std::size_t count = std::min(out.size() - done, end_ - begin_);
      std::memcpy(out.data() + done, &buffer_[begin_], count);
      begin_ += count;
      done += count;
    }
    offset_ += done;
    return done;
  }

  void skip(std::uint64_t count) {
    std::array<std::byte, 4096> unused;
    while (count > 0) {
      const std::size_t part =
          static_cast<std::size_t>(std::min<std::uint64_t>(count, unused.size()));
      const std::size_t got = read(std::span(unused).first(part));
      require<DataError>(got == part, "the archive is cut off behind a member");
      count -= part;
    }
  }

  std::string where_;
  std::unique_ptr<TarStream> stream_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what of the buffer is still to be given
  std::uint64_t offset_ = 0, position_ = 0, skip_before_next_ = 0;
  PaxFields global_;
  bool done_ = false;
};

TarReader::TarReader(const std::string& where) : impl_(std::make_unique<Impl>(where)) {
  impl_->open();
}
TarReader::~TarReader() = default;
bool TarReader::next(TarEntry& entry) { return impl_->next(entry); }
std::uint64_t TarReader::position() const { return impl_->position(); }

}  // namespace floe
