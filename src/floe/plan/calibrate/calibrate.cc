#include "floe/plan/calibrate/calibrate.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/core/stopwatch.h"
#include "floe/plan/calibrate/device_rates.h"
#include "floe/plan/calibrate/link_rates.h"

namespace floe::plan {
namespace {

// Three digits that say something.
std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  double back = 0;
  std::sscanf(text, "%lf", &back);
  std::snprintf(text, sizeof text, back >= 1000 ? "%.0f" : "%g", back);
  return text;
}

std::string nearest_machine(const DeviceRates& rates, bool of_cores) {
  if (of_cores) return "cpu";
  if (rates.name.find("H100") != std::string::npos) return "h100";
  if (rates.name.find("A100") != std::string::npos) return "a100";
  return "h200";
}

// Collects the numbers in the order of the description.
class Fields {
 public:
  explicit Fields(Calibration& calibration) : calibration_(calibration) {}

  void add(const std::string& key, const std::string& value, const std::string& how) {
    calibration_.fields.push_back({key, value, how});
    known_.insert(key);
  }
  void add(const std::string& key, std::optional<double> value, const std::string& how) {
    if (value) add(key, digits(*value), how);
  }
  // Whatever was not added, of the keys that such a machine has.
  void name_missing(bool of_cores) {
    std::vector<std::string> keys{
        "context",          "slack",        "bf16_tflops", "fp8_tflops", "fp32_tflops",
        "attention_tflops", "flash_tflops", "flash_half",  "memory_gbs", "update_gbs",
        "host_gbs",         "kernel_us",    "issue_us",    "step_ms",    "gpus_per_node",
        "intra_gbs",        "intra_us",     "inter_gbs",   "inter_us"};
    if (of_cores) keys.insert(keys.end(), {"collective_cores", "reduce_gbs"});
    for (const std::string& key : keys)
      if (!known_.contains(key)) calibration_.missing.push_back(key);
  }

 private:
  Calibration& calibration_;
  std::set<std::string> known_;
};

void add_device(Fields& fields, const DeviceRates& rates, bool of_cores) {
  const std::string all = of_cores ? str(" on all ", rates.cores, " cores") : "";
  if (rates.memory_bytes > 0)
    fields.add("memory", str(rates.memory_bytes),
               of_cores ? "of the machine" : "of the device, as it says");
  if (rates.context_bytes > 0)
    fields.add("context", str(rates.context_bytes),
               "in use before anything was allocated, by whoever uses the device");
  if (of_cores) {
    fields.add("context", "0", "not counted: memory of ranks is that of their tensors");
    fields.add("slack", "0", "likewise");
  }
  fields.add("bf16_tflops", rates.bf16_tflops,
             of_cores
                 ? str("256 rows through a weight of 1024x768, forward and both gradients", all)
                 : "a product of [16384, 4096] and [4096, 4096]");
  fields.add("fp8_tflops", rates.fp8_tflops,
             rates.fp8_tflops == 0.0 ? "this device has no products in 8 bits"
                                     : "the same in e4m3, rows and columns with scales");
  fields.add("fp32_tflops", rates.fp32_tflops,
             of_cores ? str("32 and 512 rows through a weight of 1024x768, likewise")
                      : "a product of [4096, 4096] and [4096, 4096]");
  if (of_cores) {
    fields.add("product_half", rates.product_half, "from the same two");
    fields.add("cores", str(rates.cores), "that this process may use");
    fields.add("core_share", rates.core_share, "the fp32 products with one thread");
    fields.add("core_memory_share", rates.core_memory_share, "the passes below with one thread");
  } else if (rates.processors > 0) {
    fields.add("processors", str(rates.processors), "multiprocessors, as the device says");
  }
  fields.add("attention_tflops", rates.attention_tflops,
             of_cores ? "causal attention over 64 keys, forward and backward"
                      : "causal attention over 256 keys, forward and backward");
  const char* flash = of_cores ? "over 64 and 512 keys" : "over 1024 and 8192 keys";
  fields.add("flash_tflops", rates.flash_tflops, flash);
  fields.add("flash_half", rates.flash_half, flash);
  fields.add("memory_gbs", rates.memory_gbs,
             of_cores ? str("sums, GELU, layer norm and softmax with their gradients", all)
                      : "a sum and a GELU of 256 MiB");
  fields.add("update_gbs", rates.update_gbs, str("fused AdamW in fp32", all));
  fields.add("host_gbs", rates.host_gbs,
             of_cores ? str("copies of 64 MiB", all)
                      : "copies of 256 MiB to pinned memory and back, the slower of both");
  fields.add("kernel_us", rates.kernel_us,
             of_cores ? "one operator over a single number, forward and backward"
                      : "500 small kernels behind a long one");
  if (of_cores)
    fields.add("issue_us", "0", "none: the host is what computes");
  else
    fields.add("issue_us", rates.issue_us,
               "one operator over a single number, forward and backward");
}

void add_links(Fields& fields, const Links& links, const DeviceRates& rates, bool of_cores) {
  const bool known = links.inside || links.between;
  if (of_cores || known) {
    const std::int64_t least = of_cores ? rates.cores : 1;
    fields.add("gpus_per_node", str(std::max<std::int64_t>(least, links.ranks_per_node)),
               of_cores ? "a rank for each core, or as many as there were" : "ranks of a node");
  }
  if (links.inside) {
    const std::string ranks = str(links.inside->ranks, " ranks of a node");
    fields.add("intra_gbs", 2 * links.inside->gbs,
               "both directions of a large all-gather, " + ranks);
    fields.add("intra_share", "1", "what was measured is what collectives reach");
    fields.add("intra_us", links.inside->us, "a small all-gather, " + ranks);
  }
  if (links.between) {
    const std::string ranks = str(links.between->ranks, " ranks, one of each node");
    // All ranks of a node did so at once, each with its share of the network.
    fields.add("inter_gbs", links.between->gbs, "a large all-gather, " + ranks);
    fields.add("inter_share", "1", "what was measured is what collectives reach");
    fields.add("inter_us", links.between->us, "a small all-gather, " + ranks);
  }
  if (!of_cores || !known) return;
  const LinkRates& link = links.inside ? *links.inside : *links.between;
  fields.add("collective_cores", link.cores, "processor time of a rank in those collectives");
  fields.add("reduce_gbs", link.reduce_gbs, "what a reduce-scatter takes beyond an all-gather");
}

}  // namespace

Calibration calibrate(comm::World& world, const CalibrateSettings& settings) {
  const bool of_cores = world.device().is_cpu();
  if (!settings.like.empty()) check_like("--like", settings.like, of_cores ? "cpu" : "gpu");
  const Stopwatch watch;
  DeviceRates rates;
  if (world.rank() == 0) {
    log::info("measures ", world.device().str());
    rates = of_cores ? measure_cpu(settings.rounds) : measure_gpu(world.device(), settings.rounds);
  }
  world.group()->barrier("rank 0 measures its device");
  if (world.size() > 1 && world.rank() == 0) log::info("measures collectives");
  const Links links = measure_links(world, settings.rounds);

  Calibration found;
  found.rounds = settings.rounds;
  if (world.rank() != 0) return found;
  found.device = of_cores ? "cpu" : "gpu";
  found.like = settings.like.empty() ? nearest_machine(rates, of_cores) : settings.like;
  found.name = settings.name.empty() ? rates.name : settings.name;
  found.hardware = str(rates.name, of_cores ? str(", ", rates.cores, " cores") : "", "; ",
                       world.size(), world.size() == 1 ? " rank" : " ranks");
  if (links.nodes > 1) found.hardware += str(" on ", links.nodes, " nodes");
  if (world.size() > 1)
    found.hardware += world.backend() == comm::Backend::nccl ? " over NCCL" : " over Gloo";
  if (links.uneven)
    found.hardware += "; nodes have different numbers of ranks, so no collectives were measured";
  Fields fields(found);
  add_device(fields, rates, of_cores);
  add_links(fields, links, rates, of_cores);
  fields.name_missing(of_cores);
  found.seconds = watch.seconds();
  return found;
}

std::string to_yaml(const Calibration& calibration) {
  char date[64];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &parts);
  std::string text =
      str("# A machine for floe plan --gpu, measured by floe calibrate.\n# When: ", date, ", in ",
          digits(calibration.seconds), " s; medians of ", calibration.rounds, " rounds",
          calibration.device == "cpu" ? ", in processor time of a thread" : "",
          ".\n# With: ", calibration.hardware, ".\n");
  if (!calibration.missing.empty())
    text += str("# Not measured, taken from '", calibration.like,
                "': ", join(calibration.missing, ", "), ".\n");
  text += str("like: ", calibration.like, "\nname: ", nlohmann::json(calibration.name).dump(),
              "\ndevice: ", calibration.device, "\n");
  for (const MeasuredField& field : calibration.fields) {
    std::string line = str(field.key, ": ", field.value);
    if (line.size() < 27) line.resize(27, ' ');
    text += str(line, " # ", field.how, "\n");
  }
  return text;
}

}  // namespace floe::plan
