// CRC-32C (Castagnoli), the checksum of TensorFlow's record files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/observe/metrics/protobuf.h"
#include "floe/observe/sinks/append_file.h"
#include "floe/observe/sinks/logger.h"

namespace floe::metrics {

std::uint32_t crc32c(std::string_view bytes);

// As record files store it: rotated and shifted, so that the checksum of bytes that contain
// checksums stays useful.
constexpr std::uint32_t masked_crc(std::uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

// A resolved configuration as one list of settings, for readers that have no notion of nesting.

// {"train": {"lr": 1, "betas": [1, 2]}} -> {"train.lr", 1}, {"train.betas", [1, 2]}. Lists stay whole.
std::vector<std::pair<std::string, nlohmann::json>> flat_config(const nlohmann::json& config);

// RUN/tensorboard/events.out.tfevents...: what `tensorboard --logdir RUN/tensorboard` shows. Every
// value is a scalar under its own name, the settings are in the HPARAMS tab, and the resolved
// configuration is the text "config".

class TensorboardLogger : public Logger {
 public:
  // Every opening begins a new file. On resume its first event makes TensorBoard drop what older
  // files hold beyond first_step.
  explicit TensorboardLogger(const RunInfo& run);
  void write(const Record& record) override;
  // Marks a run that succeeded as done in the HPARAMS tab.
  void finish(int exit_code) override;

 private:
  void add_event(double time_s, std::int64_t step, int field, std::string_view content);
  std::unique_ptr<AppendFile> file_;
  std::map<std::string, std::string> texts_;  // the last ones: a text is written where it changes
};

// A record of TensorFlow's record files: its length, the bytes, a masked CRC-32C of each.
std::string tf_record(std::string_view bytes);

}  // namespace floe::metrics
