// What a conversion has finished, kept beside its shards so that it can go on where it was stopped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "floe/convert/document.h"

namespace floe::convert {

// A place in the input: line `line` of zip `zip`.
struct ConvertPlace {
  std::int64_t zip = 0, line = 0;
};

struct FinishedShard {
  std::string name;
  std::int64_t bytes = 0;
  ConvertPlace next;  // where the following shard begins
  ConvertCounts counts;
};

// The file FOLDER/convert.jsonl: a line with the settings, one per finished shard, and a last one
// when everything is done. It is replaced as a whole, so it is always readable.
class ConvertJournal {
 public:
  // Makes the folder if there is none, and locks it until the journal is gone. `settings` is JSON
  // text; a conversion that was begun with others is a ConfigError, and so is a folder with shards
  // that no journal knows. Unfinished files are removed; from the first shard on that is not as it
  // was finished, everything is forgotten.
  ConvertJournal(const std::string& folder, const std::string& settings);
  ~ConvertJournal();
  ConvertJournal(const ConvertJournal&) = delete;
  ConvertJournal& operator=(const ConvertJournal&) = delete;

  const std::vector<FinishedShard>& shards() const { return shards_; }
  bool is_complete() const { return complete_; }
  // `is_last`: with this shard everything is done.
  void add(const FinishedShard& shard, bool is_last);

 private:
  std::string path() const { return folder_ + "/convert.jsonl"; }
  void lock();
  void read();
  void remove_unfinished() const;
  void write() const;

  std::string folder_, settings_;
  std::vector<FinishedShard> shards_;
  bool complete_ = false;
  int lock_fd_ = -1;
};

}  // namespace floe::convert
