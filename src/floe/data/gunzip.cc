#include "floe/data/gunzip.h"

#include <zlib.h>

#include <array>

#include "floe/core/error.h"

namespace floe::data {
namespace {

class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> file) {
    require<DataError>(inflateInit2(&stream_, 15 + 16) == Z_OK, "gzip: cannot begin");
    // zlib does not write through next_in; its type only predates const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(file.data()));
    stream_.avail_in = static_cast<uInt>(file.size());
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Appends one member.
  void member(Bytes& out, std::size_t most_bytes) {
    inflateReset(&stream_);
    std::array<std::byte, 65536> block;
    for (int result = Z_OK; result != Z_STREAM_END;) {
      stream_.next_out = reinterpret_cast<Bytef*>(block.data());
      stream_.avail_out = static_cast<uInt>(block.size());
      result = inflate(&stream_, Z_NO_FLUSH);
      require<DataError>(result == Z_OK || result == Z_STREAM_END,
                         result == Z_BUF_ERROR ? "gzip: cut off" : "gzip: damaged");
      out.insert(out.end(), block.begin(), block.end() - stream_.avail_out);
      require<DataError>(out.size() <= most_bytes, "gzip: more than ", most_bytes, " bytes");
    }
  }

  // Zeros between and behind members do not count.
  void skip_zeros() {
    for (; stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) ++stream_.next_in;
  }
  bool done() const { return stream_.avail_in == 0; }

 private:
  z_stream stream_{};
};

}  // namespace

Bytes gunzip(std::span<const std::byte> file, std::size_t most_bytes) {
  Bytes out;
  require<DataError>(file.size() <= most_bytes, "gzip: more than ", most_bytes, " bytes");
  if (file.empty()) return out;
  Inflater inflater(file);
  while (!inflater.done()) {
    inflater.member(out, most_bytes);
    inflater.skip_zeros();
  }
  return out;
}

}  // namespace floe::data
