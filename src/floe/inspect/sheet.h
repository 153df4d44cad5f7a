// What an inspection shows in pictures: a grid of crops, and a page with crops and texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "floe/data/sample.h"
#include "floe/image/image.h"
#include "floe/inspect/inspect.h"

namespace floe::inspect {

// Crops side by side in one picture, each with the number of its sample (counted from 1 among the
// kept ones).
class CropGrid {
 public:
  // `size` of a crop; up to `most` crops are shown.
  explicit CropGrid(int size, std::size_t most = 120) : size_(size), most_(most) {}

  void add(const Outcome& outcome);
  // A white picture when nothing was added.
  image::Image image() const;

 private:
  struct Cell {
    std::size_t sample = 0;
    std::vector<std::uint8_t> crop;
  };

  int size_;
  std::size_t most_;
  std::size_t num_samples_ = 0;
  std::vector<Cell> cells_;
};

// A contact sheet: what a model would see of the first samples, as one HTML file that needs no
// other. Crops, the text token by token with marks made visible and learned tokens set off, and why
// others were dropped.
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

}  // namespace floe::inspect
