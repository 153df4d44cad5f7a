// The file of a W&B run, run-ID.wandb: a header of seven bytes, then entries in LevelDB's log
// format. An entry is one serialized message wandb_internal.Record.
//
// Blocks of 32 KiB are counted from the file's first byte. An entry is cut into chunks that do not
// cross a block: CRC-32 of type and data (u32), length (u16), type (u8: whole, first, middle,
// last), data. A block's rest too short for a chunk's head is zeros.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "floe/observe/metrics/record.h"
#include "floe/observe/sinks/protobuf.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe::wandb {

// The seven bytes in front.
std::string file_header();

// The bytes of an entry for a file that has `file_size` bytes so far.
std::string entry(std::string_view record, std::int64_t file_size);

// Reads entries up to the file's end or the first damage; a file whose writer was killed ends with
// a torn entry.
class FileReader {
 public:
  // Throws DataError when the file cannot be opened or is not a W&B run.
  explicit FileReader(const std::string& path);
  // False at the end: damage() says why when bytes are left.
  bool next(std::string& record);
  const std::string& damage() const { return damage_; }

 private:
  bool read(std::size_t num_bytes, std::string& out);
  bool fail(const std::string& damage);

  std::ifstream file_;
  std::int64_t offset_ = 0;
  std::string damage_;
};

// The messages of wandb_internal.proto, as floe writes and reads them.

// Which message a Record holds: its field number there.
enum class Kind : int {
  history = 2,
  summary = 3,
  config = 5,
  files = 6,
  run = 17,
  exit = 18,
  header = 21,
  environment = 26,
};

// Record{num, message}; nums count the records of a file from 1.
std::string record(std::int64_t num, Kind kind, std::string_view message);

struct RunStart {
  std::string id;
  double time_s = 0;
  bool resume = false;  // the server knows rows of this run that the file does not hold
};

Message header(const std::string& version);
// `project` and `entity` may be empty: the uploader's own.
Message run(const RunInfo& info, const RunStart& start, const std::string& project,
            const std::string& entity);
Message environment(const RunInfo& info, const RunStart& start);
// A row, and the same numbers as the run's latest.
Message history(const Record& record, double runtime_s);
Message summary(const Record& record, double runtime_s);
// Paths relative to the run's folder files/.
Message files(const std::vector<std::string>& paths);
Message exit(int exit_code, double runtime_s);

// A Record that was read back.
struct Parsed {
  Kind kind = Kind::header;
  std::string_view message;  // inside the bytes that were parsed
};
// Nothing when the bytes are no Record or hold another message than those above.
std::optional<Parsed> parse_record(std::string_view bytes);

// Of a history or summary: its step, and seconds since the run began; nothing when there is none.
struct Row {
  std::optional<std::int64_t> step;
  double runtime_s = 0;
};
Row parse_row(const Parsed& parsed);
// Of a run: when it began, and whether it goes on with rows of the server.
void parse_start(std::string_view run, RunStart& start);

}  // namespace floe::observe::wandb
