// Crops side by side in one picture, each with the number of its sample (counted from 1 among the
// kept ones).
#pragma once

#include <cstdint>
#include <vector>

#include "floe/data/sample.h"
#include "floe/image/image.h"

namespace floe::data {

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

}  // namespace floe::data
