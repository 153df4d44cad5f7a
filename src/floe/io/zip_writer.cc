#include "floe/io/zip_writer.h"

#include "floe/core/error.h"
#include "floe/io/crc32.h"
#include "floe/io/json_text.h"

namespace floe {

ZipWriter::ZipWriter(const std::string& path, std::int64_t alignment)
    : file_(path), alignment_(alignment) {}

std::size_t ZipWriter::declare(const std::string& name, std::int64_t size) {
  require(!name.empty() && name.size() <= 0xff00, "'", path(),
          "': a zip entry cannot have the name ", quoted(name));
  require(names_.insert(name).second, "'", path(), "': the zip entry ", quoted(name),
          " was declared twice");
  require(size >= 0, "'", path(), "': the zip entry ", quoted(name), " has the size ", size);
  const std::int64_t end = entries_.empty() ? 0 : entries_.back().end();
  entries_.push_back(zip::place(name, size, end, alignment_));
  written_.push_back(0);
  return entries_.size() - 1;
}

void ZipWriter::write(std::size_t number, std::span<const std::byte> bytes) {
  zip::Placed& entry = entries_.at(number);
  const auto count = static_cast<std::int64_t>(bytes.size());
  require(count <= missing(number), "'", path(), "': the zip entry ", quoted(entry.name), " has ",
          entry.size, " bytes, but ", written_[number] + count, " were written");
  file_.write_at(entry.data_offset + written_[number], bytes);
  entry.crc = crc32(bytes, entry.crc);
  written_[number] += count;
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  write(declare(name, static_cast<std::int64_t>(bytes.size())), std::as_bytes(std::span(bytes)));
}

std::int64_t ZipWriter::missing(std::size_t number) const {
  return entries_.at(number).size - written_[number];
}

void ZipWriter::finish() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    require(missing(i) == 0, "'", path(), "': the zip entry ", quoted(entries_[i].name), " has ",
            entries_[i].size, " bytes, but only ", written_[i], " were written");
    put(entries_[i].header_offset, zip::local_header(entries_[i]));
  }
  const std::int64_t end = entries_.empty() ? 0 : entries_.back().end();
  put(end, zip::directory(entries_, end));
  file_.commit();
}

void ZipWriter::put(std::int64_t offset, const std::string& bytes) {
  file_.write_at(offset, std::as_bytes(std::span(bytes)));
}

}  // namespace floe
