// The messages of a W&B run (wandb_internal.proto), as floe writes and reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "floe/observe/metrics/protobuf.h"
#include "floe/observe/sinks/logger.h"

namespace floe::metrics {

// This machine's name.

std::string host_name();

}  // namespace floe::metrics

namespace floe::metrics::wandb {

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
Message run(const RunInfo& info, const RunStart& start);
Message environment(const RunInfo& info, const RunStart& start);
// A row, and the same numbers as the run's latest.
Message history(const Record& record, double runtime_s);
Message summary(const Record& record, double runtime_s);
// Paths relative to the run's folder files/.
Message files(const std::vector<std::string>& paths);
Message exit(int exit_code, double runtime_s);

// A Record that was read back.
struct Parsed {
  Kind kind{};
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

}  // namespace floe::metrics::wandb
