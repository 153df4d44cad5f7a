#include "floe/train/reporting/step_record.h"

namespace floe::train {
namespace {

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// Note [Times of a record]
// wall_time = step_time + skipped_time + validation_time + checkpoint_time + phase_switch_time +
// other_time, where parts that did not happen are left out. data_time is a part of step_time,
// checkpoint_wait_time (for the save before) one of checkpoint_time.
template <class Add>
void add_times(const TimeAccount::Times& times, Add&& add) {
  const auto add_some = [&](const char* name, double seconds) {
    if (seconds > 0) add(name, seconds);
  };
  add("wall_time", times.wall());
  add("data_time", times.of(TimeAccount::data));
  add("step_time", times.step());
  add_some("skipped_time", times.of(TimeAccount::skipped));
  add_some("validation_time", times.of(TimeAccount::validation));
  add_some("checkpoint_time", times.of(TimeAccount::save_wait) + times.of(TimeAccount::saving));
  add_some("checkpoint_wait_time", times.of(TimeAccount::save_wait));
  add_some("phase_switch_time", times.of(TimeAccount::phase_switch));
  add("other_time", times.of(TimeAccount::other));
}

}  // namespace

observe::Record to_metrics(const StepRecord& record, int world_size) {
  observe::Record out{.step = record.step, .time_s = observe::unix_time_s()};
  const auto add = [&](const std::string& name, double value) {
    out.values.emplace_back(name, value);
  };
  add("epoch", static_cast<double>(record.epoch));
  add("lr", record.lr);
  add("grad_norm", record.gradient_norm);
  for (const auto& source : record.sources) add("loss_" + source.name, source.loss);
  add_times(record.times, add);
  if (record.rank_times.size() > 1) {
    const auto add_range = [&](double RankTimes::*time, const char* least, const char* most,
                               const char* rank) {
      const TimeRange range = range_of(record.rank_times, time);
      add(least, range.least_s);
      add(most, range.most_s);
      add(rank, range.most_rank);
    };
    add_range(&RankTimes::data_s, "fastest_data_time", "slowest_data_time", "slowest_data_rank");
    add_range(&RankTimes::own_s, "fastest_own_time", "slowest_own_time", "slowest_own_rank");
    add_range(&RankTimes::gather_wait_s, "shortest_gather_wait", "longest_gather_wait",
              "longest_gather_wait_rank");
    add_range(&RankTimes::reduce_wait_s, "shortest_reduce_wait", "longest_reduce_wait",
              "longest_reduce_wait_rank");
  }
  // Over everything that happened since the record before, saves and validation included.
  const double wall_s = record.times.wall();
  for (const auto& source : record.sources) {
    const double rate = per_second(source.samples, wall_s);
    add(source.name + "_samples_per_second", rate);
    add(source.name + "_samples_per_second_per_gpu", rate / world_size);
  }
  add("tokens_per_second", per_second(record.tokens, wall_s));
  if (record.teraflops > 0) add("tflops", record.teraflops);
  if (record.mfu) add("mfu", *record.mfu);
  add("skipped", static_cast<double>(record.skipped));
  add("bad_samples", static_cast<double>(record.bad_samples));
  add("memory_peak_bytes", static_cast<double>(record.memory_peak));
  if (record.loss_scale) add("loss_scale", *record.loss_scale);
  if (record.noise_scale) add("gradient_noise_scale", *record.noise_scale);
  for (const auto& [name, value] : record.others) add(name, value);
  // Made up for after a stop: it belongs to the step before.
  if (record.validated_step && record.validated_step != record.step)
    add("validation_step", static_cast<double>(record.validated_step));
  if (!record.phase.empty()) out.texts.emplace_back("phase", record.phase);
  if (!record.ended_early.empty()) out.texts.emplace_back("ended_early", record.ended_early);
  if (!record.phase_switch.is_null()) out.details["phase_switch"] = record.phase_switch;
  return out;
}

observe::Progress to_progress(const StepRecord& record, int world_size) {
  observe::Progress out;
  out.step = record.step;
  const double wall_s = record.times.wall();
  for (const auto& source : record.sources) {
    out.losses.emplace_back("loss_" + source.name, source.loss);
    out.samples_per_second_per_rank.emplace_back(source.name,
                                                 per_second(source.samples, wall_s) / world_size);
  }
  out.tokens_per_second = per_second(record.tokens, wall_s);
  out.memory_bytes = record.memory_peak;
  out.skipped = record.skipped;
  return out;
}

}  // namespace floe::train
