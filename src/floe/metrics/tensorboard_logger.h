// RUN/tensorboard/events.out.tfevents...: what `tensorboard --logdir RUN/tensorboard` shows. Every
// value is a scalar under its own name, the settings are in the HPARAMS tab, and the resolved
// configuration is the text "config".
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "floe/metrics/append_file.h"
#include "floe/metrics/logger.h"
#include "floe/metrics/protobuf.h"

namespace floe::metrics {

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
