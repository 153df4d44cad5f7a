// log.prometheus: the latest numbers of a run as a text file for the textfile collector of
// Prometheus' node_exporter. It is replaced as a whole at every record: the collector may read it
// at any moment, and takes every file of its folder whose name ends in .prom.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/core/utf8.h"
#include "floe/observe/metrics/jsonl_reader.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe {
namespace {

struct PrometheusConfig {
  std::optional<std::string> prometheus;
};
void describe(config::Schema<PrometheusConfig>& s) {
  s.field("prometheus", &PrometheusConfig::prometheus,
          "File for the textfile collector of Prometheus' node_exporter, DIR/NAME.prom; null: none")
      .rule(
          "ends in .prom", "end in .prom, or the collector does not read it",
          [](const std::optional<std::string>& path) { return !path || path->ends_with(".prom"); });
}

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
    {"tflops", "floe_tflops", "gauge", "TFLOP/s of rank 0: the model's own arithmetic."},
    {"mfu", "floe_mfu_ratio", "gauge", "Share of the device's peak TFLOP/s."},
    {"memory_peak_bytes", "floe_memory_peak_bytes", "gauge",
     "Peak of rank 0's device memory since the record before."},
    {"epoch", "floe_epoch", "gauge", "Pass over the data, from 0.", false},
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

class PrometheusSink : public Sink {
 public:
  PrometheusSink(std::string path, const RunInfo& run)
      : path_(std::move(path)), run_(run.name), version_(run.version), step_(run.first_step) {
    put();
  }

  void write(const Record& record) override {
    step_ = record.step;
    time_s_ = record.time_s;
    for (const auto& [name, text] : record.texts)
      if (name == "phase") set_phase(text);
    for (const auto& [name, value] : record.values)
      for (std::size_t i = 0; i < kMetrics.size(); ++i)
        if (const auto source = match(kMetrics[i].value, name); source && is_own(i, name))
          values_[i][std::string(*source)] = value;
    put();
  }

  void finish(int exit_code) override {
    exit_code_ = exit_code;
    put();
  }

 private:
  // A value that has a metric of its own is no source's: loss_scale.
  static bool is_own(std::size_t metric, std::string_view name) {
    if (kMetrics[metric].value == name) return true;
    for (const Metric& other : kMetrics)
      if (other.value == name) return false;
    return true;
  }

  // What the phase before has measured is no longer shown as the latest.
  void set_phase(const std::string& phase) {
    if (phase == phase_) return;
    phase_ = phase;
    for (auto& [metric, values] : values_)
      if (kMetrics[metric].of_phase) values.clear();
  }

  std::string text() const {
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
    of_run("floe_run_finished", "1 when the run has ended, 0 before.", exit_code_ ? 1 : 0);
    if (exit_code_) of_run("floe_run_exit_code", "0: done; else stopped or failed.", *exit_code_);
    of_run("floe_step", "Optimizer updates so far.", static_cast<double>(step_));
    if (time_s_)
      of_run("floe_last_record_timestamp_seconds", "Unix time of the last record.", *time_s_);
    for (const auto& [metric, values] : values_) {
      const Metric& shown = kMetrics[metric];
      if (!values.empty()) head(shown.name, shown.type, shown.help);
      for (const auto& [source, value] : values)
        sample(shown.name,
               {{"run", run_}, {"phase", shown.of_phase ? phase_ : ""}, {"source", source}}, value);
    }
    return text;
  }

  // Replaces the file. The collector passes over the temporary one by its name.
  void put() {
    const std::string temporary = str(path_, ".", ::getpid(), ".tmp");
    const std::string bytes = text();
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fail(errno);
    std::size_t done = 0;
    int reason = 0;
    while (done < bytes.size() && reason == 0) {
      const ssize_t written = ::write(fd, bytes.data() + done, bytes.size() - done);
      if (written >= 0)
        done += static_cast<std::size_t>(written);
      else if (errno != EINTR)
        reason = errno;
    }
    if (::close(fd) != 0 && reason == 0) reason = errno;
    if (reason == 0 && std::rename(temporary.c_str(), path_.c_str()) != 0) reason = errno;
    if (reason != 0) {
      ::unlink(temporary.c_str());
      return fail(reason);
    }
    if (std::exchange(failing_, false)) log::info("'", path_, "' is written again");
  }

  void fail(int reason) {
    if (!std::exchange(failing_, true) && !std::exchange(warned_, true))
      log::warn("log.prometheus: '", path_, "' cannot be written (", std::strerror(reason),
                "); the run goes on, and it is tried again at every record");
  }

  const std::string path_, run_, version_;
  std::int64_t step_;
  std::optional<double> time_s_;  // of the last record
  std::optional<int> exit_code_;  // of a run that has ended
  std::string phase_;
  std::map<std::size_t, std::map<std::string, double>> values_;  // the latest, by metric and source
  bool failing_ = false, warned_ = false;
};

std::unique_ptr<Sink> open_prometheus(const PrometheusConfig& config, const RunInfo& run) {
  return config.prometheus ? std::make_unique<PrometheusSink>(*config.prometheus, run) : nullptr;
}

}  // namespace

SinkType prometheus_sink() { return sink_type(open_prometheus); }

}  // namespace floe::observe
