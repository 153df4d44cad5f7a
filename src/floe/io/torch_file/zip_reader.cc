#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/zip.h"

namespace floe {
namespace {

constexpr std::int64_t kMostCommentBytes = 65535;  // after the end record
constexpr std::int64_t kMostDirectoryBytes = std::int64_t{1} << 30;

// The fields of a record, one after another. The caller has checked that the record is long enough.
class Fields {
 public:
  explicit Fields(std::string_view record) : record_(record) {}
  std::uint16_t u16() { return next<std::uint16_t>(); }
  std::uint32_t u32() { return next<std::uint32_t>(); }
  std::uint64_t u64() { return next<std::uint64_t>(); }
  void skip(std::size_t bytes) { at_ += bytes; }

 private:
  template <class Number>
  Number next() {
    Number value;
    std::memcpy(&value, record_.substr(at_, sizeof value).data(), sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view record_;
  std::size_t at_ = 0;
};

// 64-bit sizes and offset, for those of the 32-bit fields that say so, in this order.
struct Wide {
  std::uint64_t size, stored_size, header_offset;
};

// False when the extra field with the wide values is missing or too short.
bool widen(std::string_view extra, Wide& wide) {
  std::array<std::uint64_t*, 3> wanted{&wide.size, &wide.stored_size, &wide.header_offset};
  if (std::none_of(wanted.begin(), wanted.end(), [](auto* v) { return *v == zip::kIn64; }))
    return true;
  while (extra.size() >= 4) {
    Fields head(extra);
    const std::uint16_t id = head.u16(), length = head.u16();
    extra.remove_prefix(4);
    if (length > extra.size()) return false;
    if (id == zip::kExtra64) {
      std::string_view field = extra.substr(0, length);
      for (std::uint64_t* value : wanted) {
        if (*value != zip::kIn64) continue;
        if (field.size() < 8) return false;
        *value = Fields(field).u64();
        field.remove_prefix(8);
      }
      return true;
    }
    extra.remove_prefix(length);
  }
  return false;
}

// A name in a message, which is made into text only when there is a message.
struct Quoted {
  const std::string& name;
  friend std::ostream& operator<<(std::ostream& out, const Quoted& q) {
    return out << quoted(q.name);
  }
};

}  // namespace

template <class... Parts>
void ZipReader::check(bool condition, const Parts&... parts) const {
  require<DataError>(condition, "'", file_->path(), "': ", parts...);
}

bool ZipReader::is_zip(const File& file) {
  if (file.size() < zip::kLocalHeaderBytes) return false;
  std::array<std::byte, 4> magic;
  file.read_at(0, magic);
  return Fields({reinterpret_cast<const char*>(magic.data()), magic.size()}).u32() ==
         zip::kLocalHeader;
}

ZipReader::ZipReader(const std::shared_ptr<const File>& file) : ZipReader(file, 0, file->size()) {}

ZipReader::ZipReader(std::shared_ptr<const File> file, std::int64_t offset, std::int64_t length)
    : file_(std::move(file)), begin_(offset), length_(length) {
  check(offset >= 0 && length >= 0 && offset <= file_->size() && length <= file_->size() - offset,
        "the file has ", file_->size(), " bytes, but an archive of ", length,
        " is expected at byte ", offset);
  read_directory(find_directory());
}

std::string ZipReader::bytes_at(std::int64_t offset, std::int64_t length) const {
  check(offset >= 0 && length >= 0 && offset <= length_ && length <= length_ - offset,
        "the zip archive is cut off or damaged: ", length, " bytes from byte ", offset,
        " are needed, but it has ", length_);
  std::string bytes(static_cast<std::size_t>(length), '\0');
  file_->read_at(begin_ + offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::int64_t ZipReader::find_end() const {
  if (length_ >= zip::kEndBytes) {  // without a comment, as torch writes it
    const std::string end = bytes_at(length_ - zip::kEndBytes, zip::kEndBytes);
    Fields fields(end);
    const bool is_end = fields.u32() == zip::kEnd;
    fields.skip(16);
    if (is_end && fields.u16() == 0) return length_ - zip::kEndBytes;
  }
  const std::int64_t tail_bytes = std::min(length_, zip::kEndBytes + kMostCommentBytes);
  const std::string tail = bytes_at(length_ - tail_bytes, tail_bytes);
  // The last record whose comment reaches exactly to the end of the archive.
  for (std::int64_t at = tail_bytes - zip::kEndBytes; at >= 0; --at) {
    Fields fields(std::string_view(tail).substr(static_cast<std::size_t>(at)));
    if (fields.u32() != zip::kEnd) continue;
    fields.skip(16);
    if (fields.u16() == tail_bytes - at - zip::kEndBytes) return length_ - tail_bytes + at;
  }
  check(false, "the zip archive has no end record: is the file cut off? Copy it again");
  return 0;
}

ZipReader::Directory ZipReader::find_directory() const {
  const std::int64_t end_at = find_end();
  const std::string end_bytes = bytes_at(end_at, zip::kEndBytes);
  Fields end(end_bytes);
  end.skip(10);
  const std::uint16_t entries = end.u16();
  const std::uint32_t length = end.u32(), offset = end.u32();
  if (entries != zip::kIn64Short && length != zip::kIn64 && offset != zip::kIn64)
    return {offset, length, entries};

  const std::string locator_bytes =
      bytes_at(end_at - zip::kEnd64LocatorBytes, zip::kEnd64LocatorBytes);
  Fields locator(locator_bytes);
  check(locator.u32() == zip::kEnd64Locator, "the zip archive's zip64 locator is missing");
  locator.skip(4);
  const std::string end64_bytes = bytes_at(bounded(locator.u64()), zip::kEnd64Bytes);
  Fields end64(end64_bytes);
  check(end64.u32() == zip::kEnd64, "the zip archive's zip64 end record is missing");
  end64.skip(28);
  const std::uint64_t entries64 = end64.u64(), length64 = end64.u64(), offset64 = end64.u64();
  return {bounded(offset64), bounded(length64), bounded(entries64)};
}

void ZipReader::read_directory(const Directory& directory) {
  check(directory.length <= kMostDirectoryBytes, "the zip directory has ", directory.length,
        " bytes, more than the ", kMostDirectoryBytes, " that floe reads");
  const std::string bytes = bytes_at(directory.offset, directory.length);
  data_end_ = directory.offset;
  std::string_view rest = bytes;
  const auto take = [&](std::int64_t count) {
    check(count <= static_cast<std::int64_t>(rest.size()), "the zip directory ends inside entry ",
          entries_.size(), " of ", directory.entries);
    const auto part = rest.substr(0, static_cast<std::size_t>(count));
    rest.remove_prefix(part.size());
    return part;
  };
  while (static_cast<std::int64_t>(entries_.size()) < directory.entries) {
    Fields fields(take(zip::kCentralHeaderBytes));
    check(fields.u32() == zip::kCentralHeader, "the zip directory is damaged at entry ",
          entries_.size());
    fields.skip(4);
    ZipEntry entry;
    entry.flags = fields.u16();
    entry.method = fields.u16();
    fields.skip(8);
    Wide wide{};
    wide.stored_size = fields.u32();
    wide.size = fields.u32();
    const std::uint16_t name_bytes = fields.u16(), extra_bytes = fields.u16(),
                        comment_bytes = fields.u16();
    fields.skip(8);
    wide.header_offset = fields.u32();
    entry.name = take(name_bytes);
    check(is_utf8(entry.name), "the name of zip entry ", entries_.size(), " is not UTF-8");
    check(widen(take(extra_bytes), wide), "zip entry ", Quoted{entry.name},
          " lacks its 64-bit sizes");
    take(comment_bytes);
    entry.size = bounded(wide.size);
    entry.header_offset = bounded(wide.header_offset);
    check(entry.method != zip::kStored || wide.size == wide.stored_size, "zip entry ",
          Quoted{entry.name}, " is stored, but has two sizes: ", wide.size, " and ",
          wide.stored_size);
    check(by_name_.emplace(entry.name, entries_.size()).second, "the zip archive has the entry ",
          Quoted{entry.name}, " twice");
    entries_.push_back(std::move(entry));
  }
}

std::int64_t ZipReader::bounded(std::uint64_t value) const {
  check(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
        "the zip archive has a size or offset of 2^63 or more");
  return static_cast<std::int64_t>(value);
}

const ZipEntry* ZipReader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::int64_t ZipReader::data_offset(const ZipEntry& entry) const {
  check(entry.method == zip::kStored && (entry.flags & zip::kEncrypted) == 0, "zip entry ",
        Quoted{entry.name}, " is compressed or encrypted (method ", entry.method,
        "); torch stores entries as they are: save the file again with torch.save");
  const std::string bytes = bytes_at(entry.header_offset, zip::kLocalHeaderBytes);
  Fields header(bytes);
  check(header.u32() == zip::kLocalHeader, "zip entry ", Quoted{entry.name},
        " has no header at byte ", entry.header_offset);
  header.skip(22);
  const std::uint16_t name_bytes = header.u16(), extra_bytes = header.u16();
  const std::int64_t begin =
      entry.header_offset + zip::kLocalHeaderBytes + name_bytes + extra_bytes;
  check(begin <= data_end_ && entry.size <= data_end_ - begin, "zip entry ", Quoted{entry.name},
        " has ", entry.size, " bytes from byte ", begin, ", but the entries end at byte ",
        data_end_);
  return begin_ + begin;
}

std::string ZipReader::read(const ZipEntry& entry, std::int64_t most_bytes) const {
  check(entry.size <= most_bytes, "zip entry ", Quoted{entry.name}, " has ", entry.size,
        " bytes, more than the ", most_bytes, " that it may have");
  const std::int64_t offset = data_offset(entry);
  std::string bytes(static_cast<std::size_t>(entry.size), '\0');
  file_->read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace floe
