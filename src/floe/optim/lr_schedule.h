// Learning rates over steps. All of them begin with the same warm-up; what comes after it is an
// entry of schedule_types(). docs/adding-a-schedule.md adds one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace floe::optim {

struct ScheduleConfig;

// A schedule by its place in schedule_types(): the registry knows their names, the first is the
// default.
enum class ScheduleKind : std::uint8_t {};

struct LrSchedule {
  ScheduleKind kind{};
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  // where a rate that falls reaches its end
  double last_factor = 0;        // what it is there and afterwards
  std::int64_t decay_steps = 1;  // of wsd: the last ones of the run, in which it falls

  // The factor on the base rate for the update number `step`, from 0.
  double factor(std::int64_t step) const;
};

// A schedule that a configuration can name.
struct ScheduleType {
  std::string_view name;               // of train.schedule.type
  std::string_view help;               // a line of the reference
  std::vector<std::string_view> keys;  // of train.schedule that it reads, beside warmup_steps
  bool falls = false;                  // until the last step, so that one has to be known
  // The factor from step warmup_steps on.
  double (*factor)(const LrSchedule& schedule, std::int64_t step) = nullptr;
};

// In the order of ScheduleKind.
const std::vector<ScheduleType>& schedule_types();
const ScheduleType& schedule_type(ScheduleKind kind);
// Throws ConfigError for a name that none has.
ScheduleKind lr_schedule_from_name(const std::string& name);

// As the block train.schedule has it, over so many steps, for a rate that is `lr` at its highest.
LrSchedule make_schedule(const ScheduleConfig& config, std::int64_t total_steps, double lr);

}  // namespace floe::optim
