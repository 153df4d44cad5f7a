// Where the results of requests go: a JSON object on each line, in the order of the requests,
// whatever the order in which they are computed.
//
// Note [Parts]
// While a run lasts, its results lie in the folder OUT.parts: a file for every rank, to which a
// line is added when a request is done, and settings.json, which says of what they are. At the end
// rank 0 puts them into OUT, in order, in one step, and removes the folder. A run that was killed
// finds its parts when it is started again, leaves out what is done, however many ranks did it, and
// does the rest. A last line that was not written to its end does not count.
#pragma once

#include <cstdint>
#include <fstream>
#include <iosfwd>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "floe/comm/world.h"

namespace floe::requests {

using Record = nlohmann::ordered_json;  // has "request", and "reason" when it has a problem

// What became of all requests.
struct Summary {
  std::int64_t requests = 0, before = 0;         // before: done by an earlier start
  std::map<std::string, std::int64_t> problems;  // by reason; of a file, on rank 0
  std::int64_t malformed = 0;                    // lines that are no requests
  std::string first_malformed;                   // what is wrong with the first; on all ranks
  bool stopped = false;                          // not all of them are done
  bool goes_on = false;                          // and the same command does the rest
};

class Output {
 public:
  virtual ~Output() = default;
  // Whether an earlier start has done it.
  virtual bool has(std::int64_t request) const = 0;
  virtual void write(const Record& record) = 0;
  // What was written is on its way to the disk: called after each batch.
  virtual void flush() = 0;
  // Collective: all ranks of the job. `stopped`: this one has not done its share.
  virtual Summary finish(std::int64_t requests, bool stopped) = 0;
};

// To a stream, as soon as all before it are there, or the run is stopped. One rank only.
std::unique_ptr<Output> stream_output(std::ostream& stream);

// Nowhere: they are there when the run ends.
class MemoryOutput : public Output {
 public:
  // Null: one rank.
  explicit MemoryOutput(comm::World* world) : world_(world) {}

  bool has(std::int64_t) const override { return false; }
  void write(const Record& record) override { own_.push_back(record); }
  void flush() override {}
  Summary finish(std::int64_t requests, bool stopped) override;

  // After `finish`, unless it was stopped: of all ranks, in the order of the requests.
  const std::vector<nlohmann::json>& records() const { return records_; }

 private:
  // Collective: what every rank says, by rank; whether one of them was stopped.
  std::vector<std::string> exchange(const std::string& own, bool& stopped) const;

  comm::World* world_;
  std::vector<Record> own_;
  std::vector<nlohmann::json> records_;
};

struct FileOutput {
  std::string path;
  nlohmann::ordered_json settings;  // what the results depend on
  bool force = false;               // replace what is there of other settings
};

// Collective: what all ranks of the world say under this key, which serves once, by rank; null:
// there is only one. Waits as long as the slowest works, but not for one that has failed.
std::vector<std::string> agree(comm::World* world, const std::string& key, const std::string& text);

// See Note [Parts]. Collective: all ranks of the world, with the same values; null: there is only
// one. Throws ConfigError when there is a file already, parts of a run with other settings, the
// first of which is named, a folder of that name that is none of ours, or another run at work on
// it.
std::unique_ptr<Output> file_output(FileOutput options, comm::World* world);

}  // namespace floe::requests
