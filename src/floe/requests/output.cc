#include "floe/requests/output.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <string_view>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/requests/request.h"

namespace floe::requests {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostPartBytes = std::int64_t{1} << 36;

// Whatever bytes a message has taken over from a file.
std::string line_of(const Record& record) {
  return record.dump(-1, ' ', /*ensure_ascii=*/false, Record::error_handler_t::replace);
}

std::int64_t number_of(const Record& record) { return record.at("request").get<std::int64_t>(); }

void count(Summary& summary, const Record& record) {
  const auto found = record.find("reason");
  if (found == record.end()) return;
  const auto reason = found->get<std::string>();
  ++summary.problems[reason];
  if (is_malformed(reason) && ++summary.malformed == 1)
    summary.first_malformed = record.at("error").get<std::string>();
}

class StreamOutput : public Output {
 public:
  explicit StreamOutput(std::ostream& stream) : stream_(stream) {}

  bool has(std::int64_t) const override { return false; }
  void write(const Record& record) override {
    waiting_.emplace(number_of(record), record);
    while (!waiting_.empty() && waiting_.begin()->first == next_) write_first();
  }
  void flush() override {
    stream_.flush();
    require(stream_.good(), "cannot write the results to stdout");
  }
  Summary finish(std::int64_t requests, bool stopped) override {
    while (!waiting_.empty()) write_first();  // what lies before them will not come
    flush();
    summary_.requests = requests;
    summary_.stopped = stopped;
    return summary_;
  }

 private:
  void write_first() {
    const auto first = waiting_.begin();
    count(summary_, first->second);
    stream_ << line_of(first->second) << "\n";
    next_ = first->first + 1;
    waiting_.erase(first);
  }

  std::ostream& stream_;
  std::int64_t next_ = 0;
  std::map<std::int64_t, Record> waiting_;
  Summary summary_;
};

// The records of a file, and how many of its bytes are whole lines.
struct Part {
  std::map<std::int64_t, std::string> records;
  std::uintmax_t whole_bytes = 0;
};

Part read_part(const std::string& path) {
  Part part;
  const std::string text = read_text(path, kMostPartBytes);
  for (std::size_t first = 0, end = 0; (end = text.find('\n', first)) != std::string::npos;
       first = end + 1) {
    const std::string line = text.substr(first, end - first);
    part.whole_bytes = end + 1;
    const Record record = Record::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.contains("request") && record["request"].is_number_integer())
      part.records.emplace(number_of(record), line);
    else
      log::warn("'", path, "' has a line that is no result; its request is computed again");
  }
  return part;
}

// Keeps other runs from a folder. Released when the process ends, however it does.
class FolderLock {
 public:
  FolderLock() = default;
  ~FolderLock() { release(); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  void take(const std::string& folder) {
    const std::string name = folder + "/lock";
    fd_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    require<ConfigError>(fd_ >= 0, "cannot write in '", folder, "': ", std::strerror(errno));
    // File systems without locks give none; then it is for users not to start two runs.
    require<ConfigError>(::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
                         "another run is writing to '", folder, "'; wait for its end");
  }
  void release() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// rank_R.jsonl
bool holds_results(const std::string& name) {
  constexpr std::string_view kBefore = "rank_", kBehind = ".jsonl";
  if (name.size() <= kBefore.size() + kBehind.size() || !name.starts_with(kBefore) ||
      !name.ends_with(kBehind))
    return false;
  return std::all_of(name.begin() + kBefore.size(), name.end() - kBehind.size(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// What a run puts into its folder, temporary files included, or NFS for a file that was removed
// while it was open.
bool is_part(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return entry.is_regular_file() &&
         (name == "lock" || name == "settings.json" || name.starts_with("settings.json.tmp-") ||
          name.starts_with(".nfs") || holds_results(name));
}

class PartsOutput : public Output {
 public:
  PartsOutput(FileOutput options, comm::World* world)
      : options_(std::move(options)), world_(world), folder_(options_.path + ".parts") {
    if (rank() == 0) open_folder();
    agree_on("opened", "");
    for (const auto& [number, text] : read_all()) done_.insert(number);
    before_ = std::ssize(done_);
    // Nobody adds to a file that another rank still reads.
    agree_on("read", "");
    open_own();
  }

  bool has(std::int64_t request) const override { return done_.contains(request); }

  void write(const Record& record) override { part_ << line_of(record) << "\n"; }

  void flush() override {
    part_.flush();
    require(part_.good(), "cannot write to '", own_path(), "'; is the disk full?");
  }

  Summary finish(std::int64_t requests, bool stopped) override {
    flush();
    part_.close();
    const std::vector<std::string> ends = agree_on("end", stopped ? "stopped" : "done");
    Summary summary{.requests = requests, .before = before_};
    summary.stopped = std::find(ends.begin(), ends.end(), "stopped") != ends.end();
    summary.goes_on = true;
    if (summary.stopped) return summary;
    if (rank() == 0) merge(summary);
    // Every rank ends with the same exit code.
    summary.first_malformed = agree_on("merged", summary.first_malformed)[0];
    return summary;
  }

 private:
  int rank() const { return world_ ? world_->rank() : 0; }
  std::string own_path() const { return str(folder_, "/rank_", rank(), ".jsonl"); }
  std::string settings_path() const { return folder_ + "/settings.json"; }

  // A world may write several files, one after the other.
  std::vector<std::string> agree_on(const std::string& what, const std::string& text) {
    return agree(world_, str("requests/", options_.path, "/", what), text);
  }

  void open_folder() {
    require<ConfigError>(options_.force || !path_exists(options_.path), "'", options_.path,
                         "' is there already; name another --output, or replace it with --force");
    std::error_code error;
    fs::create_directory(folder_, error);
    require<ConfigError>(!error, "cannot make the folder '", folder_, "': ", error.message());
    std::vector<fs::path> parts;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      require<ConfigError>(is_part(entry), "the folder '", folder_,
                           "' is needed for parts of the results, but has other files, such as '",
                           name, "'; name another --output");
      if (name != "lock" && !name.starts_with(".nfs")) parts.push_back(entry.path());
    }
    lock_.take(folder_);
    const std::string difference = first_difference();
    if (difference.empty()) return;
    // A start that ended before its first result is in nobody's way.
    const bool has_results = std::any_of(parts.begin(), parts.end(), [](const fs::path& part) {
      return holds_results(part.filename().string()) && fs::file_size(part) > 0;
    });
    require<ConfigError>(options_.force || !has_results, "'", folder_,
                         "' has results of another run (", difference,
                         "); go on with that, name another --output, or start over with --force");
    for (const fs::path& part : parts) fs::remove(part);
    write_file_atomically(settings_path(), options_.settings.dump(2) + "\n");
  }

  // Between the settings that are there and those of this run; empty: none.
  std::string first_difference() const {
    if (!path_exists(settings_path())) return "without its settings";
    const auto found =
        Record::parse(read_text(settings_path(), 1 << 24), nullptr, /*allow_exceptions=*/false);
    if (!found.is_object()) return "its settings cannot be read";
    for (const auto& [key, value] : options_.settings.items())
      if (!found.contains(key) || found[key] != value)
        return str(key, ": ", found.contains(key) ? found[key].dump() : "nothing", " there, ",
                   value.dump(), " now");
    return "";
  }

  std::map<std::int64_t, std::string> read_all() const {
    std::map<std::int64_t, std::string> records;
    for (const std::string& name : file_names_in(folder_))
      if (holds_results(name)) records.merge(read_part(str(folder_, "/", name)).records);
    return records;
  }

  void open_own() {
    if (fs::exists(own_path())) fs::resize_file(own_path(), read_part(own_path()).whole_bytes);
    part_.open(own_path(), std::ios::binary | std::ios::app);
    require(part_.is_open(), "cannot write to '", own_path(), "'");
  }

  void merge(Summary& summary) {
    const auto records = read_all();
    AtomicFile out(options_.path);
    std::int64_t at = 0;
    for (std::int64_t number = 0; number < summary.requests; ++number) {
      const auto found = records.find(number);
      require(found != records.end(), "'", folder_, "' has no result of request ", number,
              "; do all ranks write to the same folder?");
      count(summary, Record::parse(found->second));
      const std::string line = found->second + "\n";
      out.write_at(at, std::as_bytes(std::span(line)));
      at += std::ssize(line);
    }
    out.commit();
    // What is left over of the parts is no reason to fail: the results are there.
    lock_.release();
    std::error_code error;
    fs::remove_all(folder_, error);
    if (error) log::warn("cannot remove '", folder_, "': ", error.message());
  }

  FileOutput options_;
  comm::World* world_;
  std::string folder_;
  FolderLock lock_;  // of rank 0
  std::set<std::int64_t> done_;
  std::int64_t before_ = 0;
  std::ofstream part_;
};

}  // namespace

std::vector<std::string> agree(comm::World* world, const std::string& key,
                               const std::string& text) {
  if (!world) return {text};
  const auto key_of = [&](int rank) { return str(key, "/", rank); };
  world->publish(key_of(world->rank()), text);
  std::vector<std::string> all;
  for (int other = 0; other < world->size(); ++other) {
    std::optional<std::string> found;
    while (!(found = world->lookup(key_of(other), std::chrono::seconds(1)))) {
      const auto failure = world->first_failure(std::chrono::milliseconds(0));
      require<CommError>(!failure, failure.value_or(""));
      const auto lost = world->lost();
      require<CommError>(!lost, lost.value_or(""));
    }
    all.push_back(*found);
  }
  return all;
}

std::vector<std::string> MemoryOutput::exchange(const std::string& own, bool& stopped) const {
  if (!world_) return {own};
  const auto ranks = static_cast<std::int64_t>(world_->size());
  const at::Tensor mine =
      at::tensor({std::ssize(own), std::int64_t{stopped}}, at::kLong).to(world_->device());
  const at::Tensor all = at::empty({ranks * 2}, mine.options());
  world_->group()->all_gather(all, mine, "sizes of results").wait();
  const at::Tensor sizes = world_->read(all);
  const auto* size = sizes.const_data_ptr<std::int64_t>();
  std::int64_t longest = 1;
  for (std::int64_t r = 0; r < ranks; ++r) {
    longest = std::max(longest, size[2 * r]);
    stopped = stopped || size[2 * r + 1] != 0;
  }
  if (stopped) return {};
  at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  bytes = bytes.to(world_->device());
  const at::Tensor gathered = at::empty({ranks * longest}, bytes.options());
  world_->group()->all_gather(gathered, bytes, "results").wait();
  const at::Tensor host = world_->read(gathered);
  const auto* text = reinterpret_cast<const char*>(host.const_data_ptr<std::uint8_t>());
  std::vector<std::string> texts;
  for (std::int64_t r = 0; r < ranks; ++r)
    texts.emplace_back(text + r * longest, static_cast<std::size_t>(size[2 * r]));
  return texts;
}

Summary MemoryOutput::finish(std::int64_t requests, bool stopped) {
  std::string own;
  for (const Record& record : own_) own += line_of(record) + "\n";
  Summary summary{.requests = requests};
  const std::vector<std::string> all = exchange(own, stopped);
  summary.stopped = stopped;
  if (stopped) return summary;
  records_.assign(static_cast<std::size_t>(requests), nullptr);
  for (const std::string& text : all) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const Record record = Record::parse(line);
      count(summary, record);
      records_.at(static_cast<std::size_t>(number_of(record))) = record;
    }
  }
  return summary;
}

std::unique_ptr<Output> stream_output(std::ostream& stream) {
  return std::make_unique<StreamOutput>(stream);
}

std::unique_ptr<Output> file_output(FileOutput options, comm::World* world) {
  return std::make_unique<PartsOutput>(std::move(options), world);
}

}  // namespace floe::requests
