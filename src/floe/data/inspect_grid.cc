#include "floe/data/inspect_grid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace floe::data {
namespace {

// Digits of 3 x 5 points, row by row from the top, the left point highest.
constexpr std::array<std::array<std::uint8_t, 5>, 10> kDigits{{{7, 5, 5, 5, 7},
                                                               {2, 6, 2, 2, 7},
                                                               {7, 1, 7, 4, 7},
                                                               {7, 1, 7, 1, 7},
                                                               {5, 5, 7, 1, 1},
                                                               {7, 4, 7, 1, 7},
                                                               {7, 4, 7, 5, 7},
                                                               {7, 1, 2, 2, 2},
                                                               {7, 5, 7, 5, 7},
                                                               {7, 5, 7, 1, 7}}};
constexpr int kPoint = 2;                       // pixels of a point
constexpr int kGap = 8, kCaption = 7 * kPoint;  // around crops; above each
constexpr std::uint8_t kPaper = 250, kInk = 60;

class Canvas {
 public:
  Canvas(int width, int height) {
    image_.width = width;
    image_.height = height;
    image_.rgb.assign(std::size_t{3} * width * height, kPaper);
  }

  void draw_crop(int left, int top, int size, const std::vector<std::uint8_t>& crop) {
    const std::size_t row_bytes = std::size_t{3} * size;
    for (int y = 0; y < size; ++y)
      std::copy_n(crop.data() + y * row_bytes, row_bytes, at(left, top + y));
  }

  void draw_number(int left, int top, std::size_t number) {
    for (const char c : std::to_string(number)) {
      const auto& rows = kDigits[static_cast<std::size_t>(c - '0')];
      for (int y = 0; y < 5 * kPoint; ++y)
        for (int x = 0; x < 3 * kPoint; ++x)
          if (rows[static_cast<std::size_t>(y / kPoint)] >> (2 - x / kPoint) & 1)
            std::fill_n(at(left + x, top + y), 3, kInk);
      left += 4 * kPoint;
    }
  }

  image::Image take() { return std::move(image_); }

 private:
  std::uint8_t* at(int x, int y) {
    return image_.rgb.data() + 3 * (static_cast<std::size_t>(y) * image_.width + x);
  }

  image::Image image_;
};

}  // namespace

void CropGrid::add(const Outcome& outcome) {
  const auto* sample = std::get_if<Sample>(&outcome);
  if (!sample) return;
  ++num_samples_;
  for (std::size_t i = 0; i < sample->num_images() && cells_.size() < most_; ++i) {
    const auto crop = sample->crop(i);
    cells_.push_back({num_samples_, {crop.begin(), crop.end()}});
  }
}

image::Image CropGrid::image() const {
  const int count = static_cast<int>(cells_.size());
  const int columns = std::max(1, static_cast<int>(std::ceil(std::sqrt(count * 1.5))));
  const int rows = std::max(1, (count + columns - 1) / columns);
  const int across = size_ + kGap, down = size_ + kCaption + kGap;
  Canvas canvas(columns * across + kGap, rows * down + kGap);
  for (int i = 0; i < count; ++i) {
    const Cell& cell = cells_[static_cast<std::size_t>(i)];
    const int left = kGap + i % columns * across, top = kGap + i / columns * down;
    canvas.draw_number(left, top, cell.sample);
    canvas.draw_crop(left, top + kCaption, size_, cell.crop);
  }
  return canvas.take();
}

}  // namespace floe::data
