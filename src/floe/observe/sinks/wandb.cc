// RUN/wandb/offline-run-DATE-ID/run-ID.wandb: a W&B run on disk, which `wandb sync RUN/wandb` of
// the wandb package uploads, also while the run goes on.
//
// One RUN is one W&B run, however often it is resumed: the id lies in RUN/wandb/run-id, and a
// resumed run goes on in the same file, without the rows beyond the step that it resumes from.
#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/observe/sinks/append_file.h"
#include "floe/observe/sinks/sink.h"
#include "floe/observe/sinks/wandb_file.h"
#include "floe/observe/sinks/wandb_upload.h"

namespace floe::observe {
namespace {

namespace fs = std::filesystem;
using wandb::Kind;

struct WandbConfig {
  enum class Mode {
    disabled,
    offline,  // a folder that `wandb sync` uploads
    online,   // the same, handed to the user's own `wandb sync` while the run goes on
  };

  Mode mode = Mode::disabled;
  std::string project = "floe";
  std::optional<std::string> entity;
  bool checkpoints = false;  // are put into the W&B run as well
};
auto enum_names(WandbConfig::Mode) {
  using enum WandbConfig::Mode;
  return std::to_array<std::pair<std::string_view, WandbConfig::Mode>>(
      {{"disabled", disabled}, {"offline", offline}, {"online", online}});
}
void describe(config::Schema<WandbConfig>& s) {
  s.field("mode", &WandbConfig::mode,
          "disabled: none; offline: a run folder that `wandb sync` uploads; online: the same, and "
          "floe runs the installed `wandb sync` on it while it trains");
  s.field("project", &WandbConfig::project, "Project of the W&B run").not_empty();
  s.field("entity", &WandbConfig::entity, "Team or user of the W&B run; null: the uploader's own");
  s.field("checkpoints", &WandbConfig::checkpoints, "Put checkpoints into the W&B run");
}

struct WandbBlock {
  std::optional<WandbConfig> wandb = WandbConfig{};
};
void describe(config::Schema<WandbBlock>& s) {
  s.section("wandb", &WandbBlock::wandb, "Weights & Biases; null: off");
}

constexpr double kLastUploadS = 60;  // a run that is done waits for its upload, at most

constexpr std::string_view kIdLetters = "abcdefghijklmnopqrstuvwxyz0123456789";

std::string new_id() {
  std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, kIdLetters.size() - 1);
  std::string id;
  while (id.size() < 8) id.push_back(kIdLetters[letter(random)]);
  return id;
}

// The id of an earlier start of this run; empty when there was none.
std::string known_id(const fs::path& path) {
  if (!fs::exists(path)) return "";
  std::string id = read_text(path.string(), 4096);
  while (!id.empty() && (id.back() == '\n' || id.back() == ' ')) id.pop_back();
  require<DataError>(
      !id.empty() && id.size() <= 64 && id.find_first_not_of(kIdLetters) == std::string::npos, "'",
      path.string(),
      "' should hold the id of a W&B run, small letters and "
      "digits, but does not; delete it to begin another W&B run");
  return id;
}

// The folder of an earlier start; empty when there is none (`wandb sync --clean` removes it).
fs::path known_folder(const fs::path& wandb_folder, const std::string& id) {
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(wandb_folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("offline-run-") && name.ends_with("-" + id) && entry.is_directory())
      newest = std::max(newest, entry.path());
  }
  return newest;
}

std::string folder_name(double time_s, const std::string& id) {
  const auto seconds = static_cast<std::time_t>(time_s);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y%m%d_%H%M%S", &parts);
  return str("offline-run-", date, "-", id);
}

void check_project(const std::string& project) {
  require<ConfigError>(
      project.size() <= 128 && project.find_first_of("/\\#?%:") == std::string::npos,
      "log.wandb.project: W&B takes at most 128 characters and none of / \\ # ? % :, got '",
      project, "'");
}

// A link that is as good as `target`, for whoever looks for the latest run.
void point_to(const fs::path& link, const fs::path& target) {
  std::error_code ignored;  // nothing depends on it, and not every file system has links
  fs::remove(link, ignored);
  fs::create_directory_symlink(target, link, ignored);
}

// Hard links keep the bytes when the original goes, at no cost; other file systems get a copy.
void keep_file(const fs::path& original, const fs::path& kept) {
  fs::create_directories(kept.parent_path());
  fs::remove(kept);  // never written through: it may be a link to an older checkpoint's bytes
  std::error_code failed;
  fs::create_hard_link(fs::canonical(original), kept, failed);
  if (failed) fs::copy_file(original, kept);
}

// A run's file that takes the place of an older one when it is whole.
class NewFile {
 public:
  explicit NewFile(const fs::path& path) : file_(path.string()) { put(wandb::file_header()); }

  void add(Kind kind, std::string_view message) {
    put(wandb::entry(wandb::record(++num_records_, kind, message), size_));
  }
  // Gives the number of records.
  std::int64_t commit() {
    file_.commit();
    return num_records_;
  }

 private:
  void put(std::string_view bytes) {
    file_.write_at(size_, std::as_bytes(std::span(bytes)));
    size_ += static_cast<std::int64_t>(bytes.size());
  }
  AtomicFile file_;
  std::int64_t size_ = 0, num_records_ = 0;
};

// Reads on to the record of the run, and takes from it what a resumed run keeps.
void read_start(wandb::FileReader& old, wandb::RunStart& start) {
  for (std::string bytes; old.next(bytes);)
    if (const auto parsed = wandb::parse_record(bytes); parsed && parsed->kind == Kind::run) {
      wandb::parse_start(parsed->message, start);
      return;
    }
}

// Copies the rows up to last_step, and the attached files; gives the run's time up to there.
double copy_rows(wandb::FileReader& old, std::int64_t last_step, NewFile& file) {
  double runtime_s = 0;
  for (std::string bytes; old.next(bytes);) {
    const auto parsed = wandb::parse_record(bytes);
    if (!parsed) continue;
    if (parsed->kind == Kind::history || parsed->kind == Kind::summary) {
      const wandb::Row row = wandb::parse_row(*parsed);
      if (!row.step || *row.step > last_step) continue;
      runtime_s = std::max(runtime_s, row.runtime_s);
    } else if (parsed->kind != Kind::files) {
      continue;
    }
    file.add(parsed->kind, parsed->message);
  }
  return runtime_s;
}

class WandbSink : public Sink {
 public:
  // Throws ConfigError for a project name that W&B does not take.
  WandbSink(const WandbConfig& config, const RunInfo& run);
  void write(const Record& record) override;
  void add_files(const std::string& path, const std::string& name) override;
  void finish(int exit_code) override;

 private:
  // Makes the file: its first records, and what stays of an older one.
  void start_file(const RunInfo& run, const fs::path& path, bool id_was_known);
  // Adds the entry of a record to `bytes`, which will go to the end of the file.
  void put(std::string& bytes, wandb::Kind kind, std::string_view message);
  // Takes away the marks of `wandb sync`, so that the next one uploads what has been added.
  void forget_upload() const;
  double runtime_s(double time_s) const { return earlier_runtime_s_ + time_s - session_start_s_; }

  const WandbConfig config_;
  fs::path folder_;
  std::string id_;
  std::unique_ptr<AppendFile> file_;
  std::unique_ptr<WandbUpload> upload_;  // null: none
  std::int64_t num_records_ = 0;
  double session_start_s_ = 0;    // of this process
  double earlier_runtime_s_ = 0;  // of the processes before it, up to the step that was resumed
};

WandbSink::WandbSink(const WandbConfig& config, const RunInfo& run)
    : config_(config), session_start_s_(run.start_time_s) {
  check_project(config.project);
  const fs::path wandb_folder = fs::path(run.folder) / "wandb";
  fs::create_directories(wandb_folder);
  id_ = known_id(wandb_folder / "run-id");
  const bool id_was_known = !id_.empty();
  if (!id_was_known) {
    id_ = new_id();
    write_file_atomically((wandb_folder / "run-id").string(), id_ + "\n");
  }
  folder_ = known_folder(wandb_folder, id_);
  if (folder_.empty()) folder_ = wandb_folder / folder_name(session_start_s_, id_);
  fs::create_directories(folder_ / "files");

  const fs::path path = folder_ / ("run-" + id_ + ".wandb");
  start_file(run, path, id_was_known);
  file_ = std::make_unique<AppendFile>(path.string());
  forget_upload();
  point_to(wandb_folder / "latest-run", folder_.filename());
  if (config.mode == WandbConfig::Mode::online)
    upload_ = std::make_unique<WandbUpload>(folder_, (wandb_folder / "sync.log").string(),
                                            run.upload_every_s);
}

void WandbSink::forget_upload() const {
  for (const char* mark : {".synced", ".syncstate"}) fs::remove(file_->path() + mark);
}

void WandbSink::start_file(const RunInfo& run, const fs::path& path, bool id_was_known) {
  wandb::RunStart start{.id = id_, .time_s = session_start_s_};
  std::unique_ptr<wandb::FileReader> old;
  if (fs::exists(path)) {
    old = std::make_unique<wandb::FileReader>(path.string());
    read_start(*old, start);
  } else {
    // Rows that were uploaded and cleaned away here must not be overwritten there.
    start.resume = id_was_known && run.first_step > 0;
  }

  NewFile file(path);
  file.add(Kind::header, wandb::header(run.version).encoded());
  file.add(Kind::run,
           wandb::run(run, start, config_.project, config_.entity.value_or("")).encoded());
  file.add(Kind::environment, wandb::environment(run, start).encoded());
  if (old && run.first_step > 0) {
    earlier_runtime_s_ = copy_rows(*old, run.first_step, file);
    if (!old->damage().empty())
      log::info("'", path.string(), "': the run was killed while it wrote (", old->damage(),
                "); everything before that is kept");
  }
  num_records_ = file.commit();
}

void WandbSink::put(std::string& bytes, Kind kind, std::string_view message) {
  const auto end = file_->size() + static_cast<std::int64_t>(bytes.size());
  bytes += wandb::entry(wandb::record(++num_records_, kind, message), end);
}

void WandbSink::write(const Record& record) {
  const double runtime = runtime_s(record.time_s);
  std::string bytes;
  put(bytes, Kind::summary, wandb::summary(record, runtime).encoded());
  put(bytes, Kind::history, wandb::history(record, runtime).encoded());
  file_->append(bytes);
  if (upload_) upload_->tick();
}

void WandbSink::add_files(const std::string& path, const std::string& name) {
  if (!config_.checkpoints) return;
  const fs::path top = folder_ / "files";
  std::vector<std::string> kept;
  const auto keep = [&](const fs::path& original, const fs::path& relative) {
    keep_file(original, top / relative);
    kept.push_back(relative.generic_string());
  };
  if (!fs::is_directory(path)) {
    keep(path, name);
  } else {
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file())
        keep(entry.path(), fs::path(name) / entry.path().lexically_relative(path));
  }
  std::string bytes;
  put(bytes, Kind::files, wandb::files(kept).encoded());
  file_->append(bytes);
}

void WandbSink::finish(int exit_code) {
  std::string bytes;
  put(bytes, Kind::exit, wandb::exit(exit_code, runtime_s(unix_time_s())).encoded());
  file_->append(bytes);
  // A run that fails has no time: its state is still to be saved.
  const bool uploads = upload_ && exit_code == 0;
  if (upload_) upload_->settle(uploads ? kLastUploadS : 0);
  forget_upload();
  if (uploads) upload_->finish(kLastUploadS);
}

void check_wandb(const WandbBlock& block) {
  if (block.wandb && block.wandb->mode == WandbConfig::Mode::online) WandbUpload::program();
}

std::unique_ptr<Sink> open_wandb(const WandbBlock& block, const RunInfo& run) {
  if (!block.wandb) return nullptr;
  const WandbConfig& config = *block.wandb;
  if (config.mode != WandbConfig::Mode::disabled) return std::make_unique<WandbSink>(config, run);
  if (config.checkpoints || config.entity || config.project != WandbConfig{}.project)
    log::warn(
        "log.wandb names a project, an entity or checkpoints, but nothing is written for W&B: "
        "log.wandb.mode is disabled; set it to offline or online");
  return nullptr;
}

}  // namespace

SinkType wandb_sink() { return sink_type(open_wandb, check_wandb); }

}  // namespace floe::observe
