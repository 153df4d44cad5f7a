#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "floe/observe/metrics/progress.h"

namespace floe::observe::count_line_test {
namespace {

// The lines of so many updates, one every 5 ms.
int lines_of(double every_s, int updates) {
  ::testing::internal::CaptureStderr();
  {
    CountLine line("validation", "batch", every_s);
    for (int done = 1; done <= updates; ++done) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      line.update(done);
    }
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  int count = 0;
  for (std::size_t at = 0; (at = text.find("validation: ", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(CountLine, SaysInALogHowMuchIsDoneEverySoManySeconds) {
  EXPECT_EQ(lines_of(0.001, 10), 10);
  EXPECT_GE(lines_of(0.05, 60), 2);
  EXPECT_EQ(lines_of(30, 10), 0);
}

}  // namespace
}  // namespace floe::observe::count_line_test
