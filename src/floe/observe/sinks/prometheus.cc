// log.prometheus: the latest numbers of a run for Prometheus, either as a text file for the
// textfile collector of its node_exporter or at a port of the loopback device. The file is replaced
// as a whole at every record: the collector may read it at any moment, and takes every file of its
// folder whose name ends in .prom.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/observe/sinks/metrics_port.h"
#include "floe/observe/sinks/prometheus_numbers.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe {
namespace {

struct PrometheusConfig {
  std::optional<std::string> prometheus;
};

// "9400" and "127.0.0.1:9400"; nothing for any other text.
std::optional<int> loopback_port(std::string_view text) {
  constexpr std::string_view kLoopback = "127.0.0.1:";
  constexpr int kMost = 65535;
  if (text.starts_with(kLoopback)) text.remove_prefix(kLoopback.size());
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && port >= 1 && port <= kMost ? std::optional(port) : std::nullopt;
}

void describe(config::Schema<PrometheusConfig>& s) {
  s.field("prometheus", &PrometheusConfig::prometheus,
          "The latest numbers for Prometheus: a file for the textfile collector of its "
          "node_exporter, DIR/NAME.prom, or a port of rank 0's loopback device, 9400 or "
          "127.0.0.1:9400; null: none")
      .rule("ends in .prom or is a port",
            "end in .prom, or the collector does not read it; or be a port of the loopback device, "
            "such as 9400 or 127.0.0.1:9400, as others than this machine's programs are not "
            "answered",
            [](const std::optional<std::string>& place) {
              return !place || place->ends_with(".prom") || loopback_port(*place);
            });
}

class PrometheusFile : public Sink {
 public:
  PrometheusFile(std::string path, const RunInfo& run) : path_(std::move(path)), numbers_(run) {
    put();
  }

  void write(const Record& record) override {
    numbers_.take(record);
    put();
  }
  void saved(double time_s) override {
    numbers_.saved(time_s);
    put();
  }
  void finish(int exit_code) override {
    numbers_.finish(exit_code);
    put();
  }

 private:
  // Replaces the file. The collector passes over the temporary one by its name.
  void put() {
    const std::string temporary = str(path_, ".", ::getpid(), ".tmp");
    const std::string bytes = numbers_.text(PrometheusNumbers::For::file);
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

  const std::string path_;
  PrometheusNumbers numbers_;
  bool failing_ = false, warned_ = false;
};

class PrometheusPort : public Sink {
 public:
  PrometheusPort(int port, const RunInfo& run)
      : numbers_(run), port_(port, [this] { return numbers_.text(PrometheusNumbers::For::now); }) {
    log::info("Prometheus: http://127.0.0.1:", port, "/metrics on this host");
  }

  void write(const Record& record) override { numbers_.take(record); }
  void saved(double time_s) override { numbers_.saved(time_s); }
  void finish(int exit_code) override { numbers_.finish(exit_code); }

 private:
  PrometheusNumbers numbers_;
  MetricsPort port_;  // last: ends before what it shows
};

void check_prometheus(const PrometheusConfig& config) {
  if (!config.prometheus) return;
  if (const auto port = loopback_port(*config.prometheus)) MetricsPort::check(*port);
}

std::unique_ptr<Sink> open_prometheus(const PrometheusConfig& config, const RunInfo& run) {
  if (!config.prometheus) return nullptr;
  if (const auto port = loopback_port(*config.prometheus))
    return std::make_unique<PrometheusPort>(*port, run);
  return std::make_unique<PrometheusFile>(*config.prometheus, run);
}

}  // namespace

SinkType prometheus_sink() { return sink_type(open_prometheus, check_prometheus); }

}  // namespace floe::observe
