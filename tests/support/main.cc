// A test program holds the tests of a folder: '--file NAME_test.cc' (any number) runs those
// of these files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/before_tests.h"

namespace {

// Takes '--file NAME' out of the arguments.
std::vector<std::string> take_files(int& argc, char** argv) {
  std::vector<std::string> files;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--file" && i + 1 < argc) {
      files.emplace_back(argv[++i]);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return files;
}

// GoogleTest's filter for the tests of these files; empty if there are none.
std::string tests_of(const std::vector<std::string>& files) {
  std::string filter;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      const auto file = std::filesystem::path(test.file()).filename().string();
      if (std::find(files.begin(), files.end(), file) == files.end()) continue;
      filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

// What a test starts knows by FLOE_TEST which test it is for; tools/mutants.py traces by it.
class TestName : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    const auto name = std::string(test.test_suite_name()) + "." + test.name();
    setenv("FLOE_TEST", name.c_str(), 1);
  }
};

// The tables of LibTorch take 0.1 s to destroy, for each of hundreds of ranks. Sanitizers look for
// leaks after that, so they see the usual end.
int end(int status) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::fflush(nullptr);
  std::_Exit(status);
#endif
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new TestName);
  const auto files = take_files(argc, argv);
  if (!files.empty()) {
    auto filter = tests_of(files);
    if (filter.empty()) {
      std::fprintf(stderr, "no test is in these files\n");
      return 2;
    }
    // What GTEST_FILTER leaves out ("-A:B") stays out.
    const std::string given = GTEST_FLAG_GET(filter);
    if (given.starts_with('-')) filter += given;
    GTEST_FLAG_SET(filter, filter);
  }
  if (const auto& begin = floe::test::before_tests()) begin();
  return end(RUN_ALL_TESTS());
}
