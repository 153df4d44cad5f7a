#include "floe/observe/sinks/prometheus_numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/str.h"
#include "floe/core/utf8.h"
#include "floe/observe/metrics/jsonl_reader.h"

namespace floe::observe {
namespace {

// A metric, and the value of records that it shows. `*` in `value` stands for the name of a data
// source, which becomes the label `source`.
struct Metric {
  std::string_view value, name, type, help;
  bool of_phase = true;  // has the label `phase`; what counts on through all phases does not
};

constexpr std::array kMetrics = std::to_array<Metric>({
    {"loss_*", "floe_loss", "gauge", "Loss of a data source in nats per token, before its weight."},
    {"val_loss", "floe_validation_loss", "gauge", "Weighted loss on held-out data."},
    {"val_loss_*", "floe_source_validation_loss", "gauge", "Loss of a source on held-out data."},
    {"lr", "floe_learning_rate", "gauge", "Learning rate of the last update."},
    {"grad_norm", "floe_gradient_norm", "gauge", "Norm of all gradients, before clipping."},
    {"loss_scale", "floe_loss_scale", "gauge", "Scale of the loss in fp16."},
    {"tokens_per_second", "floe_tokens_per_second", "gauge", "Tokens per second of all ranks."},
    {"*_samples_per_second", "floe_samples_per_second", "gauge",
     "Samples of a data source per second, of all ranks."},
    {"step_time", "floe_step_seconds", "gauge", "Time of the last step."},
    {"data_time", "floe_data_wait_seconds", "gauge", "Time of the last step spent on data."},
    {"slowest_data_time", "floe_slowest_data_wait_seconds", "gauge",
     "The longest that a rank waited for data."},
    {"slowest_own_time", "floe_slowest_own_seconds", "gauge",
     "The most time that a rank took without waits for others."},
    {"slowest_own_rank", "floe_slowest_rank", "gauge", "The rank that took it."},
    {"longest_gather_wait", "floe_longest_gather_wait_seconds", "gauge",
     "The longest that a rank waited for parameters."},
    {"longest_reduce_wait", "floe_longest_reduce_wait_seconds", "gauge",
     "The longest that a rank waited for sums of gradients."},
    {"checkpoint_time", "floe_checkpoint_seconds", "gauge",
     "Time for which the last save held the training."},
    {"tflops", "floe_tflops", "gauge", "TFLOP/s of rank 0: the model's own arithmetic."},
    {"mfu", "floe_mfu_ratio", "gauge", "Share of the device's peak TFLOP/s."},
    {"memory_peak_bytes", "floe_memory_peak_bytes", "gauge",
     "Peak of rank 0's device memory since the record before."},
    {"epoch", "floe_epoch", "gauge", "Epoch of the data, from 0.", false},
    {"skipped", "floe_skipped_batches_total", "counter",
     "Batches whose loss or gradients were not finite.", false},
    {"bad_samples", "floe_bad_samples_total", "counter", "Samples that the data pipeline left out.",
     false},
});

// What `*` stands for in `name`; nothing where the pattern does not fit.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos)
    return pattern == name ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view begin = pattern.substr(0, star), end = pattern.substr(star + 1);
  if (name.size() <= begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end))
    return std::nullopt;
  return name.substr(begin.size(), name.size() - begin.size() - end.size());
}

// As the exposition format wants it.
std::string value_text(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return number_text(value);  // NaN is NaN there too
}

using Labels = std::vector<std::pair<std::string_view, std::string>>;

// {run="demo",source="laion"}; a label without a value is left out, which means the same.
std::string labels_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    if (value.empty()) continue;
    text += str(text.empty() ? "{" : ",", name, "=\"");
    for (const char c : replace_invalid_utf8(value)) {
      if (c == '\n') {
        text += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') text += '\\';
      text += c;
    }
    text += '"';
  }
  return text.empty() ? "" : text + "}";
}

// A value that has a metric of its own is no source's: loss_scale.
bool is_own(std::size_t metric, std::string_view name) {
  if (kMetrics[metric].value == name) return true;
  return std::none_of(kMetrics.begin(), kMetrics.end(),
                      [&](const Metric& other) { return other.value == name; });
}

}  // namespace

PrometheusNumbers::PrometheusNumbers(const RunInfo& run)
    : run_(run.name),
      version_(run.version),
      start_s_(run.start_time_s),
      restarts_(run.restarts),
      step_(run.first_step) {}

void PrometheusNumbers::take(const Record& record) {
  const std::lock_guard lock(mutex_);
  step_ = record.step;
  if (record.step > 0) step_s_ = record.time_s;
  for (const auto& [name, text] : record.texts)
    if (name == "phase") set_phase(text);
  for (const auto& [name, value] : record.values)
    for (std::size_t i = 0; i < kMetrics.size(); ++i)
      if (const auto source = match(kMetrics[i].value, name); source && is_own(i, name))
        values_[i][std::string(*source)] = value;
}

void PrometheusNumbers::saved(double time_s) {
  const std::lock_guard lock(mutex_);
  saved_s_ = time_s;
}

void PrometheusNumbers::finish(int exit_code) {
  const std::lock_guard lock(mutex_);
  exit_code_ = exit_code;
}

// What the phase before has measured is no longer shown as the latest.
void PrometheusNumbers::set_phase(const std::string& phase) {
  if (phase == phase_) return;
  phase_ = phase;
  for (auto& [metric, values] : values_)
    if (kMetrics[metric].of_phase) values.clear();
}

std::string PrometheusNumbers::text(For reader) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto head = [&](std::string_view name, std::string_view type, std::string_view help) {
    text += str("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  };
  const auto sample = [&](std::string_view name, const Labels& labels, double value) {
    text += str(name, labels_text(labels), " ", value_text(value), "\n");
  };
  const auto of_run = [&](std::string_view name, std::string_view help, double value) {
    head(name, "gauge", help);
    sample(name, {{"run", run_}}, value);
  };
  head("floe_run_info", "gauge", "The run, and the version of floe that trains it.");
  sample("floe_run_info", {{"run", run_}, {"version", version_}}, 1);
  of_run("floe_run_start_timestamp_seconds", "Unix time of this start of the run.", start_s_);
  of_run("floe_restarts", "Starts before this one, by launcher or scheduler.",
         static_cast<double>(restarts_));
  of_run("floe_run_finished", "1 when the run has ended, 0 before.", exit_code_ ? 1 : 0);
  if (exit_code_) of_run("floe_run_exit_code", "0: done; else stopped or failed.", *exit_code_);
  of_run("floe_step", "Optimizer updates so far.", static_cast<double>(step_));
  if (step_s_)
    of_run("floe_last_step_timestamp_seconds", "Unix time of the last step's record.", *step_s_);
  if (saved_s_)
    of_run("floe_last_checkpoint_timestamp_seconds", "Unix time of the last save of this start.",
           *saved_s_);
  if (reader == For::now) {
    const auto age = [&](std::optional<double> time_s) {
      return std::max(0.0, unix_time_s() - time_s.value_or(start_s_));
    };
    of_run("floe_last_step_age_seconds", "Since the last step, or the start.", age(step_s_));
    of_run("floe_last_checkpoint_age_seconds", "Since the last save of this start, or the start.",
           age(saved_s_));
  }
  for (const auto& [metric, values] : values_) {
    const Metric& shown = kMetrics[metric];
    if (!values.empty()) head(shown.name, shown.type, shown.help);
    for (const auto& [source, value] : values)
      sample(shown.name,
             {{"run", run_}, {"phase", shown.of_phase ? phase_ : ""}, {"source", source}}, value);
  }
  return text;
}

}  // namespace floe::observe
