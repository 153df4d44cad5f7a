#include "floe/plan/machine/machine.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::plan {
namespace {

// What kinds of kernels reach inside of real steps on H200s, one number for a kind
// (bench/results/2026-11-15-h200.md): products less than one alone (790 TFLOP/s), since the chip is
// warm, passes over memory less than a copy. The H100 is the same chip with slower memory; of the
// A100 only the vendor's figures are taken, at the shares that the H200 reaches of its own.
Machine h200() {
  Machine m;
  m.name = "h200";
  m.memory = {141'000'000'000};
  m.context = {512 * kMiB};
  m.slack = 0.03;
  m.bf16_tflops = 730;
  m.fp8_tflops = 1'300;
  m.fp32_tflops = 50;
  m.attention_tflops = 57;
  m.flash_tflops = 550;
  m.flash_half = 850;
  m.processors = 132;
  m.memory_gbs = 2'600;
  m.update_gbs = 2'500;
  m.host_gbs = 52;
  m.kernel_us = 2;
  m.issue_us = 20;
  m.step_ms = 2.5;
  m.intra_gbs = 900;
  m.inter_gbs = 50;
  m.intra_share = 0.8;
  m.inter_share = 0.9;
  m.intra_us = 3;
  m.inter_us = 10;
  return m;
}

Machine h100() {
  Machine m = h200();
  m.name = "h100";
  m.memory = {80 * kGiB};
  m.memory_gbs = 1'800;
  m.update_gbs = 1'730;
  return m;
}

Machine a100() {
  Machine m = h200();
  m.name = "a100";
  m.memory = {80 * kGiB};
  m.bf16_tflops = 240;
  m.fp8_tflops = 0;
  m.fp32_tflops = 19;
  m.attention_tflops = 25;
  m.flash_tflops = 180;
  m.processors = 108;
  m.memory_gbs = 1'100;
  m.update_gbs = 1'060;
  m.host_gbs = 22;
  m.intra_gbs = 600;
  m.inter_gbs = 25;
  return m;
}

// Two cores of a current server, as `floe calibrate` sees them.
Machine two_cores() {
  Machine m;
  m.name = "cpu";
  m.device = "cpu";
  m.memory = {8 * kGiB};
  m.context = {0};
  m.slack = 0;
  m.bf16_tflops = 0.2;
  m.fp8_tflops = 0.05;
  m.fp32_tflops = 0.2;
  m.attention_tflops = 0.08;
  m.flash_tflops = 0.15;
  m.flash_half = 100;
  m.memory_gbs = 16;
  m.update_gbs = 16;
  m.host_gbs = 8;
  m.kernel_us = 4;
  m.issue_us = 0;
  m.step_ms = 0.5;
  m.gpus_per_node = 2;
  m.intra_gbs = 4;
  m.inter_gbs = 1;
  m.intra_share = 1;
  m.inter_share = 1;
  m.intra_us = 100;
  m.inter_us = 200;
  m.cores = 2;
  m.core_share = 0.5;
  m.core_memory_share = 0.6;
  m.product_half = 10;
  m.collective_cores = 1;
  m.reduce_gbs = 3;
  return m;
}

const std::array<Machine, 4>& known_machines() {
  static const std::array<Machine, 4> machines{h200(), h100(), a100(), two_cores()};
  return machines;
}

const Machine* known_machine(const std::string& name) {
  for (const Machine& machine : known_machines())
    if (machine.name == name) return &machine;
  return nullptr;
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const Machine& machine : known_machines()) names.push_back(machine.name);
  return names;
}

}  // namespace

void describe(config::Schema<Machine>& s) {
  using C = Machine;
  const auto rate = [&](const std::string& name, double C::*member, const std::string& help) {
    s.field(name, member, help).more_than(0);
  };
  const auto share = [&](const std::string& name, double C::*member, const std::string& help) {
    s.field(name, member, help).more_than(0).at_most(1);
  };
  const auto time = [&](const std::string& name, double C::*member, const std::string& help) {
    s.field(name, member, help).at_least(0);
  };
  s.field("name", &C::name, "What it is called in tables");
  s.choice("device", &C::device, {"gpu", "cpu"}, "What ranks compute on: a GPU each, or cores");
  s.field("memory", &C::memory, "Memory of a GPU; of a machine of cores");
  s.field("context", &C::context, "Memory that is gone before anything is allocated");
  s.field("slack", &C::slack, "Share of what is allocated that the allocator cannot use again")
      .at_least(0)
      .less_than(1);
  rate("bf16_tflops", &C::bf16_tflops, "That large products in 16 bits reach");
  s.field("fp8_tflops", &C::fp8_tflops, "Likewise in 8 bits; 0: it has no such products")
      .at_least(0);
  rate("fp32_tflops", &C::fp32_tflops, "Likewise in fp32");
  rate("attention_tflops", &C::attention_tflops, "That attention over short spans reaches");
  rate("flash_tflops", &C::flash_tflops, "Likewise over very long ones");
  time("flash_half", &C::flash_half, "Keys of a span at which half of that is reached");
  s.field("processors", &C::processors, "That work on the tiles of a product").at_least(1);
  rate("memory_gbs", &C::memory_gbs, "GB/s that kernels read and write together");
  rate("update_gbs", &C::update_gbs, "Likewise of the optimizer");
  rate("host_gbs", &C::host_gbs, "GB/s to host memory, or back");
  time("kernel_us", &C::kernel_us, "Microseconds from one kernel to the next");
  time("issue_us", &C::issue_us, "Microseconds of the host for each kernel");
  time("step_ms", &C::step_ms, "Milliseconds of the host, once a step");
  s.field("gpus_per_node", &C::gpus_per_node, "GPUs of a node").at_least(1);
  rate("intra_gbs", &C::intra_gbs, "GB/s of a GPU inside of a node, both directions together");
  rate("inter_gbs", &C::inter_gbs, "GB/s of a GPU's share of the network, in one direction");
  share("intra_share", &C::intra_share, "Of a direction that collectives reach in a node");
  share("inter_share", &C::inter_share, "Likewise between nodes");
  time("intra_us", &C::intra_us, "Microseconds from one rank to the next in a node");
  time("inter_us", &C::inter_us, "Likewise between nodes");
  s.field("cores", &C::cores, "Of a machine of cores: how many").at_least(1);
  share("core_share", &C::core_share, "Of the rate of products that one core alone reaches");
  share("core_memory_share", &C::core_memory_share, "Likewise of memory_gbs");
  time("product_half", &C::product_half,
       "Smallest side of a product at which half of the rate is reached, on cores");
  rate("collective_cores", &C::collective_cores, "Cores of each rank that a collective keeps busy");
  rate("reduce_gbs", &C::reduce_gbs, "GB/s that a rank of cores sums in reductions");
}

Machine find_machine(const std::string& name_or_file, const std::string& what) {
  if (const Machine* known = known_machine(name_or_file)) return *known;
  require<ConfigError>(std::filesystem::is_regular_file(name_or_file), what, " '", name_or_file,
                       "' is neither one of ", join(known_names(), ", "), " nor a file",
                       did_you_mean(name_or_file, known_names()));
  config::Value tree = config::read_yaml(name_or_file);
  auto* map = tree.as<config::Map>();
  require<ConfigError>(map != nullptr, name_or_file, ": a machine is a block of keys");
  const config::Value* device = tree.at("device");
  const auto* device_name = device ? device->as<std::string>() : nullptr;
  std::string like = device_name && *device_name == "cpu" ? "cpu" : "h200";
  if (const config::Value* named = tree.at("like")) {
    const auto* text = named->as<std::string>();
    require<ConfigError>(text && known_machine(*text), name_or_file, ": 'like' must be one of ",
                         join(known_names(), ", "));
    like = *text;
    map->erase("like");
  }
  config::Value all = config::schema_of<Machine>().write(*known_machine(like), config::Write::all);
  config::merge(all, tree);
  Machine machine = config::bind<Machine>(all);
  check_like(name_or_file + ": 'like'", like, machine.device);
  return machine;
}

Machine machine_of_gpu(const std::string& gpu, bool has_fp8_products) {
  for (const auto& [part, machine] :
       {std::pair{"H200", &h200}, std::pair{"H100", &h100}, std::pair{"A100", &a100}})
    if (gpu.find(part) != std::string::npos) return machine();
  Machine machine = a100();
  machine.name = str(gpu, " (with the rates of an A100)");
  if (has_fp8_products)  // as much faster as those of an H200
    machine.fp8_tflops = machine.bf16_tflops * h200().fp8_tflops / h200().bf16_tflops;
  return machine;
}

Machine machine_of_rank_on_cores(double cores) {
  Machine m = h200();
  m.name = "cpu";
  m.context = {256 * kMiB};
  m.bf16_tflops = m.fp8_tflops = m.fp32_tflops = 0.05 * cores;
  m.attention_tflops = m.flash_tflops = 0.02 * cores;
  m.flash_half = 0;
  m.processors = 1;
  m.memory_gbs = m.update_gbs = m.host_gbs = 5 * std::min(cores, 8.0);
  m.kernel_us = 0;
  m.issue_us = 5;
  m.step_ms = 1;
  m.intra_gbs = 4;
  m.inter_gbs = 1;
  m.intra_share = m.inter_share = 1;
  m.intra_us = 50;
  m.inter_us = 100;
  return m;
}

void check_like(const std::string& what, const std::string& name, const std::string& device) {
  const Machine* known = known_machine(name);
  require<ConfigError>(known != nullptr, what, " '", name, "' must be one of ",
                       join(known_names(), ", "), did_you_mean(name, known_names()));
  require<ConfigError>(known->device == device, what, " '", name, "' is a ", known->device,
                       ", but this is a ", device);
}

double parse_rate(const std::string& what, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end == text.c_str() ? "" : std::string(end);
  struct Unit {
    const char* name;
    double giga;
  };
  constexpr std::array kUnits{Unit{"GB/s", 1},     Unit{"TB/s", 1e3},     Unit{"MB/s", 1e-3},
                              Unit{"Gb/s", 0.125}, Unit{"Tb/s", 0.125e3}, Unit{"Mb/s", 0.125e-3}};
  for (const Unit& known : kUnits)
    if (unit == known.name && number > 0) return number * known.giga;
  throw ConfigError(
      str(what, " '", text, "' is no rate; say for example 900GB/s (bytes) or 400Gb/s (bits)"));
}

}  // namespace floe::plan
