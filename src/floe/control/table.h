// The table of small values that all ranks share, as rank 0 keeps it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/control/message.h"

namespace floe::control {

struct Request {
  enum class Op {
    set,          // keys to values
    get,          // the values of keys, once all of them are there
    wait,         // until all keys are there
    look,         // the values of keys that are there; `number` counts them
    add,          // `number` to a counter that begins at 0
    remove,       // a key; `number`: whether it was there
    compare_set,  // values: expected and new. An absent key takes the new one if "" is expected
    append,
    count,   // of keys
    states,  // what every rank is doing; with a key, the rank of this number
  };
  Op op = Op::set;
  std::vector<std::string> keys = {}, values = {};
  std::int64_t number = 0;
};

struct Reply {
  std::vector<std::string> values;
  std::int64_t number = 0;
};

class Table {
 public:
  // Nothing: keys are missing that the request waits for; ask again after a change.
  std::optional<Reply> apply(const Request& request);
  // Of the keys that a request waits for, the first that is not there; null: it waits for none.
  const std::string* first_missing(const Request& request) const;

 private:
  std::map<std::string, std::string> values_;
};

// The parts of a message. Those that read throw DataError for what is not well formed.
void put(Message& message, const Request& request);
void put(Message& message, const Reply& reply);
Request request_of(const Message& message);
Reply reply_of(const Message& message);

}  // namespace floe::control
