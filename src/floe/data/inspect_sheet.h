// A contact sheet: what a model would see of the first samples, as one HTML file that needs no other.
// Crops, the text token by token with marks made visible and learned tokens set off, and why others
// were dropped.
#pragma once

#include <string>
#include <vector>

#include "floe/data/inspect.h"

namespace floe::data {

class ContactSheet {
 public:
  // Shows up to `most` kept and as many dropped samples; the others are counted.
  explicit ContactSheet(std::size_t most) : most_(most) {}

  // For every visit of Inspection::run.
  void add(const Outcome& outcome, const Inspection& inspection);
  // The page; after run().
  std::string html(const Inspection& inspection) const;

 private:
  std::size_t most_;
  std::size_t num_kept_ = 0, num_dropped_ = 0;
  std::string cards_, dropped_rows_;
};

}  // namespace floe::data
