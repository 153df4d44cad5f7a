#include "floe/train/reporting/log_config.h"

#include "floe/schema/schema.h"

namespace floe {

void describe(config::Schema<LogConfig>& s) {
  using C = LogConfig;
  s.field("every_steps", &C::every_steps, "Steps between two lines where there is no terminal")
      .at_least(1);
  s.embed<observe::SinkConfigs>(&C::sinks);
  s.section("diagnostics", &C::diagnostics, "Strategy, unit tree, memory and dtypes; null: off");
  s.field("peak_tflops", &C::peak_tflops,
          "What the device can do in the dtype of computation, for MFU; null: known for some GPUs")
      .more_than(0);
}

}  // namespace floe
