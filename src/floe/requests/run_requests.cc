#include "floe/requests/run_requests.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iomanip>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/stopwatch.h"

namespace floe::requests {
namespace {

// Texts that are looked at together to find those of similar length.
constexpr std::size_t kWindowRequests = 2048;
constexpr std::int64_t kWindowBatches = 16;
constexpr double kLogEverySeconds = 10;

using Batch = std::vector<Request>;

// The share of a rank, batch by batch.
class Batches {
 public:
  Batches(const RequestSource& file, const Work& work, const RunRequests& options)
      : file_(file), work_(work), options_(options) {
    if (options.world) {
      next_ = options.world->rank();
      stride_ = options.world->size();
    }
  }

  // Empty at the end. Requests that have a problem come in batches of their own.
  Batch next() {
    if (at_ == planned_.size()) plan();
    if (at_ == planned_.size()) return {};
    return std::move(planned_[at_++]);
  }

 private:
  void plan() {
    planned_.clear();
    at_ = 0;
    Batch window, refused;
    std::vector<generation::RequestSize> sizes;
    std::int64_t tokens = 0;
    for (; next_ < file_.size() && window.size() < kWindowRequests &&
           refused.size() < kWindowRequests && tokens < kWindowBatches * options_.batch_tokens;
         next_ += stride_) {
      Request request = file_.read(next_);
      if (request.problem) {
        refused.push_back(std::move(request));
        continue;
      }
      sizes.push_back(work_.size(request));
      tokens += sizes.back().tokens();
      window.push_back(std::move(request));
    }
    if (!refused.empty()) planned_.push_back(std::move(refused));
    for (const auto& numbers : generation::make_batches(sizes, options_.batch_tokens)) {
      Batch& batch = planned_.emplace_back();
      for (const std::size_t r : numbers) batch.push_back(std::move(window[r]));
    }
  }

  const RequestSource& file_;
  const Work& work_;
  const RunRequests& options_;
  std::int64_t next_ = 0, stride_ = 1;
  std::vector<Batch> planned_;
  std::size_t at_ = 0;
};

// On several threads.
void load_pictures(const RequestSource& file, Batch& batch) {
  const std::size_t threads =
      std::min<std::size_t>({8, std::max(1U, std::thread::hardware_concurrency()), batch.size()});
  std::vector<std::future<void>> loading;
  for (std::size_t t = 0; t < threads; ++t)
    loading.push_back(std::async(std::launch::async, [&, t] {
      for (std::size_t r = t; r < batch.size(); r += threads) file.load_pictures(batch[r]);
    }));
  for (std::future<void>& part : loading) part.get();
}

Record record_of(const Request& request, const Record& result) {
  Record record;
  record["request"] = request.number;
  if (!request.id.is_null()) record["id"] = request.id;
  for (const auto& [key, value] : result.items()) record[key] = value;
  if (request.problem) {
    record["error"] = request.problem.text;
    record["reason"] = request.problem.reason;
  }
  return record;
}

void compute(const Work& work, Batch& batch, Output& output) {
  const auto write = [&](const Request& request, const Record& result) {
    if (!output.has(request.number)) output.write(record_of(request, result));
  };
  Batch whole;
  for (Request& request : batch) {
    if (request.problem)
      write(request, Record::object());
    else
      whole.push_back(std::move(request));
  }
  const auto compute_all = [&](Batch& requests) {
    const std::vector<Record> records = work.compute(requests);
    require(records.size() == requests.size(), "there are ", requests.size(), " requests but ",
            records.size(), " results");
    for (std::size_t r = 0; r < requests.size(); ++r) write(requests[r], records[r]);
  };
  try {
    if (!whole.empty()) compute_all(whole);
  } catch (const DataError&) {  // numbers that are none: whose, is found one by one
    for (Request& request : whole) {
      Batch alone{request};
      try {
        compute_all(alone);
      } catch (const DataError& error) {
        request.problem = {"numbers", request.where + error.what()};
        write(request, Record::object());
      }
    }
  }
  output.flush();
}

class Progress {
 public:
  Progress(const Work& work, const RunRequests& options, std::int64_t requests)
      : name_(work.name), terminal_(isatty(STDERR_FILENO) == 1) {
    const std::int64_t ranks = options.world ? options.world->size() : 1;
    const std::int64_t rank = options.world ? options.world->rank() : 0;
    share_ = (requests - rank + ranks - 1) / ranks;
    of_rank_ = ranks > 1 ? " of this rank" : "";
  }
  ~Progress() {
    if (terminal_) log::set_status_line("");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::size_t requests, bool computed) {
    done_ += static_cast<std::int64_t>(requests);
    if (computed) computed_ += static_cast<std::int64_t>(requests);
    const double now = watch_.seconds();
    if (!terminal_ && now - shown_at_s_ < kLogEverySeconds) return;
    shown_at_s_ = now;
    std::ostringstream text;
    text << name_ << ": " << done_ << " of " << share_ << " requests" << of_rank_ << std::fixed
         << std::setprecision(1) << ", " << static_cast<double>(computed_) / std::max(now, 1e-9)
         << "/s";
    if (terminal_)
      log::set_status_line(text.str());
    else
      log::info(text.str());
  }

 private:
  std::string name_, of_rank_;
  bool terminal_;
  std::int64_t share_ = 0, done_ = 0, computed_ = 0;
  Stopwatch watch_;
  double shown_at_s_ = 0;
};

void log_summary(const std::string& name, const Summary& summary, double seconds) {
  if (summary.stopped) {
    log::warn(name, ": stopped by a signal; ",
              summary.goes_on ? "the same command goes on with what is missing"
                              : "what was done is printed, and with --output the same command "
                                "would go on with the rest");
    return;
  }
  std::int64_t problems = 0;
  std::vector<std::string> reasons;
  for (const auto& [reason, number] : summary.problems) {
    problems += number;
    reasons.push_back(str(reason, " ", number));
  }
  std::ostringstream text;
  text << name << ": " << counted(summary.requests, "request");
  if (summary.before > 0) text << ", " << summary.before << " of them by an earlier start";
  text << ", " << problems << " with an error";
  if (problems > 0) text << " (" << join(reasons, ", ") << "; see 'error' in their lines)";
  text << std::fixed << std::setprecision(1) << ", " << seconds << " s";
  if (problems > 0)
    log::warn(text.str());
  else
    log::info(text.str());
}

}  // namespace

Summary run_requests(const RequestSource& file, const Work& work, Output& output,
                     const RunRequests& options) {
  Batches batches(file, work, options);
  std::optional<Progress> progress;
  if (!options.quiet) progress.emplace(work, options, file.size());
  const Stopwatch watch;
  const auto is_done = [&](const Batch& batch) {
    return std::all_of(batch.begin(), batch.end(),
                       [&](const Request& request) { return output.has(request.number); });
  };
  // The next batch that is not done, with its pictures.
  std::size_t skipped = 0;
  const auto fetch = [&] {
    Batch batch = batches.next();
    for (; !batch.empty() && is_done(batch); batch = batches.next()) skipped += batch.size();
    load_pictures(file, batch);
    return batch;
  };
  const auto stopped = [&] {
    return (options.stop && *options.stop) || (work.lockstep && work.lockstep->stopped());
  };
  Batch batch = fetch();
  while (!batch.empty() && !stopped()) {
    if (options.world) {  // results that nobody will put together are not worth the wait
      const auto failure = options.world->first_failure(std::chrono::milliseconds(0));
      require<CommError>(!failure, failure.value_or(""));
    }
    const std::size_t done_before = std::exchange(skipped, 0);
    if (progress) progress->add(done_before, /*computed=*/false);
    auto next = std::async(std::launch::async, fetch);
    const std::size_t requests = batch.size();
    compute(work, batch, output);
    batch = next.get();
    if (progress) progress->add(requests, /*computed=*/true);
  }
  if (work.lockstep) work.lockstep->finish();
  const Summary summary = output.finish(file.size(), /*stopped=*/!batch.empty());
  if (!options.quiet && (!options.world || options.world->rank() == 0))
    log_summary(work.name, summary, watch.seconds());
  return summary;
}

}  // namespace floe::requests
