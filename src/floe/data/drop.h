// Inside makers: leaves the making of a sample. make() turns it into a Dropped.
#pragma once

#include <string>
#include <string_view>

#include "floe/core/error.h"
#include "floe/data/sample.h"

namespace floe::data {

struct Drop {
  std::string_view reason;
  std::string detail;
};

template <class... Parts>
void keep_if(bool condition, std::string_view reason, const Parts&... detail) {
  if (!condition) throw Drop{reason, str(detail...)};
}

// What `work` gives; a DataError in it drops the sample for `reason`.
template <class Work>
auto or_drop(std::string_view reason, Work&& work) {
  try {
    return work();
  } catch (const DataError& error) {
    throw Drop{reason, error.what()};
  }
}

}  // namespace floe::data
