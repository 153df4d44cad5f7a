// The lines of a file of JSON lines as members of a shard.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "floe/data/stream_reader.h"
#include "floe/io/tar_stream.h"

namespace floe::data {

class TextLines : public MemberSource {
 public:
  // Throws DataError when there is no such file.
  explicit TextLines(const std::string& where);
  // Blank lines do not count. Throws DataError that names the line when the file is damaged or a
  // line is absurdly long; every line before that has been given.
  bool next(TarEntry& entry) override;

 private:
  bool next_line(std::vector<std::byte>& line);

  std::string where_;
  std::unique_ptr<TarStream> stream_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is unread in buffer_
  std::int64_t number_ = 0;          // of the line before
  bool ended_ = false;
};

}  // namespace floe::data
