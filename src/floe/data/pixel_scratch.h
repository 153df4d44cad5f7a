// Memory for the pixels of one picture, kept by its thread: fresh pages for every picture cost a tenth
// of the time that decoding takes.
#pragma once

#include "floe/core/bytes.h"
#include "floe/image/image.h"

namespace floe::data {

// One at a time in a thread.
class PixelScratch {
 public:
  PixelScratch() = default;
  // A huge picture does not stay.
  ~PixelScratch() {
    if (static_cast<std::int64_t>(image().rgb.capacity()) > kMostKept) image() = {};
  }
  PixelScratch(const PixelScratch&) = delete;
  PixelScratch& operator=(const PixelScratch&) = delete;

  image::Image& image() {
    thread_local image::Image kept;
    return kept;
  }

 private:
  static constexpr std::int64_t kMostKept = 32 * kMiB;
};

}  // namespace floe::data
