#include "floe/convert/convert.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/core/bytes.h"
#include "floe/core/log.h"
#include "floe/data/shards/shard_list.h"

namespace floe::cli {
namespace {

using namespace std::chrono_literals;

// One line that changes on a terminal; elsewhere a line per shard and per half a minute.
class ProgressLine {
 public:
  ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { end(); }

  void operator()(const convert::ConvertProgress& progress) {
    const auto now = Clock::now();
    if (first_documents_ < 0) first_documents_ = count(progress, "documents");
    const bool about_shard = !progress.finished_shard.empty();
    if (!about_shard && now - shown_ < (terminal_ ? 200ms : 30s)) return;
    shown_ = now;
    if (terminal_)
      std::cerr << "\r\033[K" << words(progress, now) << std::flush;
    else if (about_shard)
      log::info(progress.finished_shard, ": ", words(progress, now));
    else
      log::info(words(progress, now));
    dirty_ = terminal_;
  }
  void end() {
    if (dirty_) std::cerr << std::endl;
    dirty_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static std::int64_t count(const convert::ConvertProgress& progress, const std::string& what) {
    const auto found = progress.counts.find(what);
    return found == progress.counts.end() ? 0 : found->second;
  }
  std::string words(const convert::ConvertProgress& progress, Clock::time_point now) const {
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const std::int64_t documents = count(progress, "documents");
    const auto rate = static_cast<double>(documents - first_documents_) / std::max(seconds, 1e-3);
    return str(progress.zips_done, "/", progress.num_zips, " zips, ", progress.shards_done,
               " shards, ", documents, " documents, ", count(progress, "pictures"), " pictures, ",
               static_cast<std::int64_t>(rate), " documents/s");
  }

  bool terminal_, dirty_ = false;
  std::int64_t first_documents_ = -1;  // done before this run
  Clock::time_point begin_ = Clock::now(), shown_ = begin_;
};

std::string required(const Options& options, const std::string& name) {
  const auto value = options.value(name);
  require<ConfigError>(value && !value->empty(), "convert: ", name,
                       " is missing; 'floe convert --help' shows how it goes");
  return *value;
}

convert::ConvertOptions read_convert_options(const Options& options) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  convert::ConvertOptions convert;
  convert.zips = data::expand_braces(required(options, "--zips"));
  convert.images = required(options, "--images");
  convert.out = required(options, "--out");
  convert.files_per_shard = options.integer("--files-per-shard", convert.files_per_shard, 1, kMany);
  convert.documents_per_shard =
      options.integer("--documents-per-shard", convert.documents_per_shard, 1, kMany);
  if (const auto bytes = options.value("--bytes-per-shard")) {
    convert.bytes_per_shard = parse_bytes(*bytes);
    require<ConfigError>(convert.bytes_per_shard > 0,
                         "convert: --bytes-per-shard must be positive");
  }
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  convert.num_threads = static_cast<int>(options.integer("--threads", cores, 1, 1024));
  return convert;
}

Exit run_convert(const Args& args) {
  const Options options(kConvertCommand, args);
  require<ConfigError>(options.words() == Args{"mmc4"},
                       "convert: say what to convert: floe convert mmc4 ..., got '",
                       join(options.words(), " "), "'");
  const convert::ConvertOptions convert = read_convert_options(options);
  const std::atomic<bool>& stop_requested = stop_on_signals();
  ProgressLine line;
  const convert::ConvertCounts counts = convert::convert_mmc4(
      convert, [&](const auto& progress) { line(progress); }, stop_requested);
  line.end();
  if (options.has("--json")) {
    std::cout << nlohmann::json(counts).dump() << "\n";
    return Exit::done;
  }
  for (const auto& [what, count] : counts) std::cout << count << " " << what << "\n";
  return Exit::done;
}

}  // namespace

const Command kConvertCommand{
    .name = "convert",
    .summary = "raw MMC4 to tar shards",
    .about = R"(usage: floe convert mmc4 --zips PATTERN --images DIR --out DIR [options]

Raw MMC4 to tar shards for training: one member KEY.json per document, its pictures inside as JPEG in
base64 ("image_base64" in "image_info"). Zip number i of the list (counted from 0) has its pictures in
IMAGES/i. A picture that is missing or unreadable is left out of its document.

Shards OUT/000000000.tar ... appear when they are whole. After an interruption the same command goes on
behind the last whole shard; the result is the same as without one. A new shard begins after a number
of zips (when it divides them evenly, the last shard is empty), of documents, or of bytes.
)",
    .options =
        {
            {"--zips", "PATTERN", "zips of JSON lines, with braces: 'mmc4/shard_{0..23098}.zip'"},
            {"--images", "DIR", "folder of the pictures"},
            {"--out", "DIR", "folder of the shards; made if it is not there"},
            {"--files-per-shard", "N", "zips per shard (1000)"},
            {"--documents-per-shard", "N", "most documents per shard (100000)"},
            {"--bytes-per-shard", "SIZE", "most bytes of documents per shard (3GB)"},
            {"--threads", "N", "pictures are converted by N threads (all cores)"},
            {"--json", "", "the counts as JSON"},
        },
    .closing =
        R"(  floe convert mmc4 --zips 'raw/shard_{0..99}.zip' --images raw/images --out shards
)",
    .words = "mmc4",
    .run = run_convert,
};

}  // namespace floe::cli
