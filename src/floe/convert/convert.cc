#include "floe/convert/convert.h"

#include <archive.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "floe/convert/journal.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/utf8.h"
#include "floe/data/loader/task_pool.h"
#include "floe/io/file/file.h"
#include "floe/io/tar/tar.h"

namespace floe::convert {
namespace {

namespace fs = std::filesystem;

// The lines of the first file in a zip archive, read as a stream.
class ZipLines {
 public:
  // Throws DataError that names the archive when it cannot be read or is empty.
  explicit ZipLines(const std::string& path);

  // The next line with its end mark, or false behind the last. Throws DataError for damage and for
  // a line of more than a gigabyte.
  bool next(std::string& line);

 private:
  struct Free {
    void operator()(archive* opened) const;
  };
  bool refill();
  [[noreturn]] void fail() const;

  std::string path_;
  std::unique_ptr<archive, Free> archive_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

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

// Everything that the result hangs on.
std::string settings_of(const ConvertOptions& options) {
  const std::string zips = join(options.zips, "\n");
  return nlohmann::json{{"zips", sha256_hex(std::as_bytes(std::span(zips)))},
                        {"num_zips", options.zips.size()},
                        {"images", bytes_to_text(options.images)},
                        {"files_per_shard", options.files_per_shard},
                        {"documents_per_shard", options.documents_per_shard},
                        {"bytes_per_shard", options.bytes_per_shard}}
      .dump();
}

void check(const ConvertOptions& options) {
  require<ConfigError>(!options.zips.empty(), "there are no zips to convert");
  require<ConfigError>(fs::is_directory(options.images), "there is no folder of pictures '",
                       options.images, "'");
  std::int64_t missing = 0;
  const std::string* first = nullptr;
  for (const std::string& zip : options.zips)
    if (!fs::exists(zip) && ++missing == 1) first = &zip;
  require<ConfigError>(missing == 0, missing, " of ", options.zips.size(),
                       " zips are not there, the first is '", first ? *first : "", "'");
}

// 32 hexadecimal digits, as the reference's uuid4().hex has them.
std::string key_of(const std::string& zip, std::int64_t line) {
  const std::string name = str(fs::path(zip).filename().string(), "\n", line);
  return sha256_hex(std::as_bytes(std::span(name))).substr(0, 32);
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r\n") == std::string::npos;
}

// A shard under way.
class ShardFile {
 public:
  ShardFile(const std::string& folder, std::int64_t number)
      : name_(shard_name(number)),
        file_(folder + "/" + name_),
        tar_([this](std::span<const std::byte> bytes) {
          file_.write_at(static_cast<std::int64_t>(tar_.num_bytes()), bytes);
        }) {}

  std::int64_t num_documents() const { return num_documents_; }
  std::int64_t num_json_bytes() const { return num_json_bytes_; }
  void add(const std::string& key, const std::string& json) {
    tar_.add(key + ".json", std::as_bytes(std::span(json)));
    ++num_documents_;
    num_json_bytes_ += static_cast<std::int64_t>(json.size());
  }
  void count(const ConvertCounts& counts) { add_counts(counts, counts_); }
  FinishedShard finish(const ConvertPlace& next) {
    tar_.finish();
    file_.commit();
    return {name_, static_cast<std::int64_t>(tar_.num_bytes()), next, counts_};
  }

 private:
  static std::string shard_name(std::int64_t number) {
    char name[32];
    std::snprintf(name, sizeof name, "%09lld.tar", static_cast<long long>(number));
    return name;
  }

  std::string name_;
  AtomicFile file_;
  TarWriter tar_;
  std::int64_t num_documents_ = 0, num_json_bytes_ = 0;
  ConvertCounts counts_;
};

// Reads lines in order, converts several at once, and writes them in order again.
class Converter {
 public:
  Converter(const ConvertOptions& options,
            const std::function<void(const ConvertProgress&)>& report,
            const std::atomic<bool>& stop)
      : options_(options),
        report_(report),
        stop_(stop),
        journal_(options.out, settings_of(options)),
        pool_(options.num_threads) {
    progress_.num_zips = static_cast<std::int64_t>(options.zips.size());
    for (const FinishedShard& shard : journal_.shards()) account(shard);
  }

  ConvertCounts run() {
    if (!journal_.is_complete()) {
      begin_shard();
      for (; place_.zip < progress_.num_zips; ++place_.zip, place_.line = 0) {
        convert_zip();
        ++progress_.zips_done;
        if ((place_.zip + 1) % options_.files_per_shard == 0) next_shard({place_.zip + 1, 0});
      }
      end_shard({place_.zip, 0}, true);
    }
    progress_.zips_done = progress_.num_zips;
    return progress_.counts;
  }

 private:
  struct Pending {
    std::int64_t line;
    std::future<ConvertedDocument> document;
  };

  void account(const FinishedShard& shard) {
    place_ = shard.next;
    progress_.zips_done = place_.zip;
    ++progress_.shards_done;
    add_counts(shard.counts, progress_.counts);
  }

  void convert_zip() {
    const std::string& zip = options_.zips[static_cast<std::size_t>(place_.zip)];
    const std::string folder = str(options_.images, "/", place_.zip);
    const std::size_t most_pending = 4 * static_cast<std::size_t>(options_.num_threads);
    ZipLines lines(zip);
    std::deque<Pending> pending;
    std::string line;
    for (std::int64_t number = 0; lines.next(line); ++number) {
      if (number < place_.line || is_blank(line)) continue;
      // A task must be copyable, a promise is not.
      auto promise = std::make_shared<std::promise<ConvertedDocument>>();
      pending.push_back({number, promise->get_future()});
      pool_.submit([promise, folder, text = std::move(line)] {
        try {
          promise->set_value(convert_document(std::as_bytes(std::span(text)), folder));
        } catch (...) {  // out of memory, for one
          promise->set_exception(std::current_exception());
        }
      });
      line = {};
      while (pending.size() >= most_pending) write(zip, pending);
    }
    while (!pending.empty()) write(zip, pending);
  }

  void write(const std::string& zip, std::deque<Pending>& pending) {
    const ConvertedDocument document = pending.front().document.get();
    const std::int64_t line = pending.front().line;
    pending.pop_front();
    require(!stop_, "the conversion was stopped; the same command goes on from shard ",
            progress_.shards_done);
    if (!document.json.empty()) {
      if (shard_->num_documents() >= options_.documents_per_shard ||
          shard_->num_json_bytes() >= options_.bytes_per_shard)
        next_shard({place_.zip, line});
      shard_->add(key_of(zip, line), document.json);
    }
    shard_->count(document.counts);
    add_counts(document.counts, progress_.counts);
    progress_.finished_shard.clear();
    report_(progress_);
  }

  void begin_shard() { shard_.emplace(options_.out, progress_.shards_done); }
  void end_shard(const ConvertPlace& next, bool is_last) {
    const FinishedShard finished = shard_->finish(next);
    shard_.reset();
    journal_.add(finished, is_last);
    ++progress_.shards_done;
    progress_.finished_shard = finished.name;
    report_(progress_);
  }
  void next_shard(const ConvertPlace& next) {
    end_shard(next, false);
    begin_shard();
  }

  const ConvertOptions& options_;
  const std::function<void(const ConvertProgress&)>& report_;
  const std::atomic<bool>& stop_;
  ConvertJournal journal_;
  ConvertProgress progress_;
  ConvertPlace place_;  // of the zip being read; its line is where to begin
  std::optional<ShardFile> shard_;
  data::TaskPool pool_;
};

}  // namespace

ConvertCounts convert_mmc4(const ConvertOptions& options,
                           const std::function<void(const ConvertProgress&)>& report,
                           const std::atomic<bool>& stop) {
  check(options);
  return Converter(options, report, stop).run();
}

}  // namespace floe::convert
