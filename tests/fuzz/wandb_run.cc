// Any bytes as the metrics of an earlier start: a run resumes from them, or they are refused.
#include <cstdint>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/observe/sinks/sink.h"
#include "floe/observe/sinks/wandb_file.h"
#include "tests/io/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace floe;
  log::set_level(log::Level::error);
  static const auto configs =
      config::bind<observe::SinkConfigs>(config::parse_yaml("wandb: {mode: offline}", "this test"));
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  // As they are, and as one entry of a sound file, so that the checksums do not hide the messages.
  for (const bool framed : {false, true}) {
    const test::Scratch scratch;
    std::string file = framed ? observe::wandb::file_header() : bytes;
    if (framed) file += observe::wandb::entry(bytes, static_cast<std::int64_t>(file.size()));
    scratch.write("wandb/run-id", "abcd1234\n");
    scratch.write("wandb/offline-run-20250101_000000-abcd1234/run-abcd1234.wandb", file);
    scratch.write("metrics.jsonl", bytes);
    try {
      const auto sinks = observe::open_sinks(configs, {.folder = scratch.path(), .first_step = 5});
      sinks->write({.step = 6, .time_s = 1, .values = {{"loss", 1}}});
      sinks->finish(0);
    } catch (const Error&) {
    }
  }
  return 0;
}
