// The floe side of bench/h200.py, h200_curves.py and h200_phases.py. Those write CONFIG.json, which
// says the same to every system that is compared; the answer is one line of JSON.
//
//   bench_h200 CONFIG.json
#include <ATen/Context.h>

#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "h200_tasks.h"
#include "json_program.h"

namespace floe {
namespace {

int run(const std::vector<std::string>& arguments) {
  require<ConfigError>(arguments.size() == 1, "usage: bench_h200 CONFIG.json");
  const nlohmann::json config = bench::read_config(arguments[0]);
  if (config.value("device", "cpu") == "cuda") at::globalContext().lazyInitDevice(at::kCUDA);
  // fp32 means fp32.
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  const std::map<std::string, nlohmann::json (*)(const nlohmann::json&)> tasks{
      {"steps", bench::measure_steps},        {"curve", bench::train_curve},
      {"gradients", bench::repeat_gradients}, {"match_gradients", bench::match_gradients},
      {"phases", bench::measure_phases},      {"plan", bench::plan_step},
      {"best", bench::best_strategies}};
  const auto task = tasks.find(config.at("task"));
  require<ConfigError>(task != tasks.end(), "there is no task ", config.at("task").dump());
  std::cout << task->second(config).dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) { return floe::bench::run_program(argc, argv, floe::run); }
