#include "floe/train/step_record.h"

namespace floe::train {
namespace {

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

metrics::Record to_metrics(const StepRecord& record, int world_size) {
  metrics::Record out{.step = record.step, .time_s = metrics::unix_time_s()};
  const auto add = [&](const std::string& name, double value) {
    out.values.emplace_back(name, value);
  };
  add("epoch", static_cast<double>(record.epoch));
  add("lr", record.lr);
  add("grad_norm", record.gradient_norm);
  for (const auto& source : record.sources) add("loss_" + source.name, source.loss);
  add("data_time", record.data_s);
  add("step_time", record.step_s);
  for (const auto& source : record.sources) {
    const double rate = per_second(source.samples, record.step_s);
    add(source.name + "_samples_per_second", rate);
    add(source.name + "_samples_per_second_per_gpu", rate / world_size);
  }
  add("tokens_per_second", per_second(record.tokens, record.step_s));
  if (record.teraflops > 0) add("tflops", record.teraflops);
  if (record.mfu) add("mfu", *record.mfu);
  add("skipped", static_cast<double>(record.skipped));
  add("bad_samples", static_cast<double>(record.bad_samples));
  add("memory_peak_bytes", static_cast<double>(record.memory_peak));
  if (record.loss_scale) add("loss_scale", *record.loss_scale);
  if (record.noise_scale) add("gradient_noise_scale", *record.noise_scale);
  if (record.checkpoint_s) add("checkpoint_time", *record.checkpoint_s);
  for (const auto& [name, value] : record.others) add(name, value);
  if (!record.phase.empty()) out.texts.emplace_back("phase", record.phase);
  if (!record.phase_switch.is_null()) out.details["phase_switch"] = record.phase_switch;
  return out;
}

metrics::Progress to_progress(const StepRecord& record, int world_size) {
  metrics::Progress out;
  out.step = record.step;
  for (const auto& source : record.sources) {
    out.losses.emplace_back("loss_" + source.name, source.loss);
    out.samples_per_second_per_gpu.emplace_back(
        source.name, per_second(source.samples, record.step_s) / world_size);
  }
  out.tokens_per_second = per_second(record.tokens, record.step_s);
  out.memory_bytes = record.memory_peak;
  out.skipped = record.skipped;
  return out;
}

}  // namespace floe::train
