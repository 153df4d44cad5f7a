// Any bytes as every file of a run: the report is made, and nothing of them becomes markup.
#include <cstdint>
#include <cstdlib>

#include "floe/observe/report/report.h"
#include "tests/io/scratch.h"

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++found;
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const floe::test::Scratch scratch;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"config.yaml", "metrics.jsonl", "diagnostics.json", "logs/rank_0.log"})
    scratch.write(name, bytes);
  const std::string page = floe::report::report_html(floe::report::read_logged_run(scratch.path()));
  if (count(page, "<script") != 1 + count(page, "<svg class='chart'")) std::abort();
  if (count(page, "<script") != count(page, "</script")) std::abort();
  return 0;
}
