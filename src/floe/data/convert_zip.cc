#include "floe/data/convert_zip.h"

#include <archive.h>

#include <cstring>

#include "floe/core/error.h"

namespace floe::data {

constexpr std::size_t kMostLineBytes = std::size_t{1} << 30;

void ZipLines::Free::operator()(archive* opened) const { archive_read_free(opened); }

void ZipLines::fail() const {
  const char* why = archive_error_string(archive_.get());
  throw DataError(str("cannot read '", path_, "' as a zip archive: ", why ? why : "it is damaged",
                      "; fetch it again or leave it out"));
}

ZipLines::ZipLines(const std::string& path)
    : path_(path), archive_(archive_read_new()), buffer_(256 * 1024) {
  require(archive_ != nullptr, "libarchive is out of memory");
  archive_read_support_format_zip_seekable(archive_.get());
  if (archive_read_open_filename(archive_.get(), path.c_str(), 256 * 1024) != ARCHIVE_OK) fail();
  archive_entry* entry = nullptr;
  const int status = archive_read_next_header(archive_.get(), &entry);
  require<DataError>(status != ARCHIVE_EOF, "the zip archive '", path, "' is empty");
  if (status < ARCHIVE_WARN) fail();
}

bool ZipLines::refill() {
  const la_ssize_t got = archive_read_data(archive_.get(), buffer_.data(), buffer_.size());
  if (got < 0) fail();
  begin_ = 0;
  end_ = static_cast<std::size_t>(got);
  return got > 0;
}

bool ZipLines::next(std::string& line) {
  line.clear();
  while (begin_ < end_ || refill()) {
    const char* first = &buffer_[begin_];
    const auto* end_mark = static_cast<const char*>(std::memchr(first, '\n', end_ - begin_));
    const std::size_t count =
        end_mark ? static_cast<std::size_t>(end_mark - first) + 1 : end_ - begin_;
    require<DataError>(line.size() + count <= kMostLineBytes, "a line of '", path_,
                       "' has more than ", kMostLineBytes, " bytes");
    line.append(first, count);
    begin_ += count;
    if (end_mark) return true;
  }
  return !line.empty();
}

}  // namespace floe::data
