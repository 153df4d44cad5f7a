#include "floe/plan/step/best.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/shard/plan/plan.h"

namespace floe::plan {
namespace {

constexpr std::size_t kShown = 3;
constexpr std::size_t kEnough = 12, kMostTried = 48;
// Estimates add what was rehearsed with another sharding; this much may be wrong with them.
constexpr double kMemoryMargin = 1.05;

// What is recomputed or leaves the device.
struct Recompute {
  std::vector<std::string> modules;
  ActivationsConfig activations;
};

// How the model's state is spread.
struct Spreading {
  shard::Strategy sharding = shard::Strategy::full_shard;
  std::int64_t shard_size = 8;
  shard::Residency residency = shard::Residency::sharded;
  shard::FrozenSharding frozen = shard::FrozenSharding::all;
};

// A unit that stands alone is recomputed part by part: as a whole, all that it keeps would be there
// at once.
std::string recomputed_part(const std::string& unit_class) {
  return unit_class == "PerceiverResampler" ? "PerceiverAttention" : unit_class;
}

// Classes of units with a backward, in order, or of their parts.
std::vector<std::string> recomputable(const PlanReport& report) {
  std::vector<std::string> classes;
  for (const shard::PlannedUnit& unit : report.plan.units) {
    const bool backward = std::any_of(unit.groups.begin(), unit.groups.end(), [&](std::size_t g) {
      return report.plan.groups[g].needed_in_backward;
    });
    const bool listed =
        std::find(report.subject.strategy.units.begin(), report.subject.strategy.units.end(),
                  unit.class_name) != report.subject.strategy.units.end();
    const std::string part = recomputed_part(unit.class_name);
    if (backward && listed && std::find(classes.begin(), classes.end(), part) == classes.end())
      classes.push_back(part);
  }
  return classes;
}

std::vector<Recompute> recomputations(const PlanReport& report, bool may_offload) {
  std::vector<Recompute> all{{}};
  const std::vector<std::string> classes = recomputable(report);
  if (classes.empty()) return all;
  using Keep = ActivationsConfig::Keep;
  all.push_back({classes, {Keep::products, false}});
  all.push_back({classes, {Keep::inputs, false}});
  if (may_offload) all.push_back({classes, {Keep::inputs, true}});
  return all;
}

std::vector<Spreading> spreadings(const PlanReport& report, const Machine& machine) {
  using enum shard::Strategy;
  const int world = report.subject.world_size;
  const std::int64_t node = machine.gpus_per_node;
  std::vector<Spreading> all;
  const auto add = [&](shard::Strategy sharding, std::int64_t size) {
    const bool sliced = sharding != no_shard && world > 1;
    all.push_back({.sharding = sharding, .shard_size = size});
    if (report.frozen_numel == 0 || !sliced) return;
    all.push_back(
        {.sharding = sharding, .shard_size = size, .residency = shard::Residency::resident});
    const bool over_all = sharding == full_shard || sharding == shard_grad_op;
    if (over_all && world > node && world % node == 0)
      all.push_back(
          {.sharding = sharding, .shard_size = node, .frozen = shard::FrozenSharding::node});
  };
  const std::int64_t kept = report.subject.strategy.hybrid_shard_size;
  add(full_shard, kept);
  if (world == 1) return all;
  add(shard_grad_op, kept);
  add(no_shard, kept);
  for (std::int64_t size = node; size < world; size *= 8)
    if (world % size == 0) add(hybrid, size), add(hybrid_grad_op, size);
  return all;
}

StrategyConfig strategy_of(const StrategyConfig& base, const Spreading& spreading,
                           const Recompute& recompute) {
  StrategyConfig strategy = base;
  strategy.automatic.reset();
  strategy.sharding = spreading.sharding;
  strategy.hybrid_shard_size = spreading.shard_size;
  strategy.frozen.residency = spreading.residency;
  strategy.frozen.sharding = spreading.frozen;
  strategy.frozen.memory_budget.reset();
  strategy.activation_checkpointing = recompute.modules;
  strategy.activations = recompute.activations;
  strategy.cpu_offload = false;
  strategy.cuda_graphs = false;
  return strategy;
}

}  // namespace

std::string words_of(const StrategyConfig& strategy, int world, int cut) {
  std::string words(shard::name_of(strategy.sharding));
  if (shard::entry_of(strategy.sharding).sliced_over == shard::SlicedOver::neighbours)
    words += str(" over ", strategy.hybrid_shard_size);
  if (world == 1) words = "one rank";
  if (strategy.frozen.residency == shard::Residency::resident) words += ", frozen resident";
  if (strategy.frozen.sharding == shard::FrozenSharding::node) words += ", frozen sliced in nodes";
  const double percent = 100 * strategy.activations.share;
  const std::string recomputed =
      percent == 100 ? ", recomputed" : str(", ", percent, "% recomputed");
  if (strategy.activation_checkpointing.empty())
    words += ", nothing recomputed";
  else if (strategy.activations.keep == ActivationsConfig::Keep::products)
    words += recomputed + " but for products";
  else if (strategy.activations.offload)
    words += recomputed + " from host memory";
  else
    words += recomputed;
  if (cut > 1) words += str(", in ", cut, " passes");
  return words;
}

namespace {

// A batch of data has its sequences one by one; a cut leaves the longest, the cut-th longest, ...
// of every source.
bool is_of_data(const BatchParts& batch) {
  return std::any_of(batch.begin(), batch.end(),
                     [](const BatchPart& part) { return part.source >= 0; });
}

bool cuts_evenly(const BatchParts& batch, int cut) {
  if (!is_of_data(batch))
    return std::all_of(batch.begin(), batch.end(),
                       [&](const BatchPart& part) { return part.sequences % cut == 0; });
  std::map<std::int64_t, std::int64_t> sequences;
  for (const BatchPart& part : batch) sequences[part.source] += part.sequences;
  return std::all_of(sequences.begin(), sequences.end(),
                     [&](const auto& of_source) { return of_source.second % cut == 0; });
}

BatchParts cut_batch(BatchParts batch, int cut) {
  if (cut == 1) return batch;
  if (!is_of_data(batch)) {
    for (BatchPart& part : batch) part.sequences /= cut;
    return batch;
  }
  std::stable_sort(batch.begin(), batch.end(), [](const BatchPart& a, const BatchPart& b) {
    return std::tuple(a.source, -a.tokens, -a.images) < std::tuple(b.source, -b.tokens, -b.images);
  });
  BatchParts left;
  std::map<std::int64_t, std::int64_t> seen;
  for (const BatchPart& part : batch) {
    // Of equal ones in a row, those whose number is a multiple of the cut.
    std::int64_t& before = seen[part.source];
    const std::int64_t taken = (before + part.sequences + cut - 1) / cut - (before + cut - 1) / cut;
    before += part.sequences;
    if (taken == 0) continue;
    left.push_back(part);
    left.back().sequences = taken;
  }
  return left;
}

PlanReport report_of(PlanSubject subject, StrategyConfig strategy, int cut) {
  subject.strategy = std::move(strategy);
  subject.passes_per_update *= cut;
  return make_report(std::move(subject));
}

// Seconds that the plan's collectives take, were they alone.
double traffic_seconds(const shard::ShardPlan& plan, const Machine& machine) {
  using Kind = comm::FakeCollective::Kind;
  double seconds = 0;
  for (const shard::PlannedGroup& group : plan.groups) {
    if (group.shard_size > 1)
      seconds +=
          plan.gathers_per_step(group) * plan.passes_per_update *
          collective_seconds({Kind::all_gather, group.moved_bytes(), group.shard_size, 1}, machine);
    if (!group.active) continue;
    if (group.shard_size > 1)
      seconds += collective_seconds(
          {Kind::reduce_scatter, group.gradient_bytes(), group.shard_size, 1}, machine);
    if (group.replicas > 1)
      seconds += collective_seconds({Kind::all_reduce, group.gradient_bytes() / group.shard_size,
                                     group.replicas, group.shard_size},
                                    machine);
  }
  return seconds;
}

// A batch that is whole comes before one that is cut: several passes are several means of the loss,
// and lose more time than a simulation sees (on an H200 two passes of OpenFlamingo-3B took 10% more
// than one, of which it knew 2%). Then the faster comes first; of two that take the same time the
// plainer one: without host memory, with less memory. The same is what differs by less than a
// simulation knows.
std::tuple<int, std::int64_t, bool, std::int64_t> rank_of(const Choice& choice) {
  constexpr double kSame = 1.002;
  const double time = std::log(choice.step.time.seconds) / std::log(kSame);
  return {choice.cut, std::llround(time), choice.host_bytes > 0, choice.needed};
}

struct Candidate {
  StrategyConfig strategy;
  int cut = 1;
  double seconds = 0;  // by estimate
  std::int64_t needed = 0;
};

class Search {
 public:
  Search(const PlanSubject& subject, const SearchSettings& settings)
      : subject_(subject),
        settings_(settings),
        as_configured_(report_of(subject, strategy_of(subject.strategy, {}, {}), 1)) {
    best_.budget = settings.budget;
  }

  Best run() {
    std::vector<Candidate> fitting;
    for (const int cut : {1, 2, 4, 8, 16, 32}) {
      const auto fits = std::count_if(fitting.begin(), fitting.end(), [&](const Candidate& one) {
        return one.needed <= best_.budget;
      });
      if (static_cast<std::size_t>(fits) >= kShown || (cut > 1 && !settings_.may_cut)) break;
      if (cuts_evenly(settings_.step.batch, cut) && cuts_evenly(settings_.largest, cut))
        estimate(cut, fitting);
    }
    std::stable_sort(fitting.begin(), fitting.end(), [](const Candidate& a, const Candidate& b) {
      return std::tuple(a.cut, a.seconds, a.needed) < std::tuple(b.cut, b.seconds, b.needed);
    });
    for (std::size_t i = 0; i < fitting.size(); ++i) {
      // What does not fit after all says nothing of those that are slower.
      if (best_.choices.size() >= kEnough || (i >= kMostTried && !best_.choices.empty())) break;
      try_out(fitting[i]);
    }
    std::stable_sort(best_.choices.begin(), best_.choices.end(),
                     [](const Choice& a, const Choice& b) { return rank_of(a) < rank_of(b); });
    if (best_.choices.size() > kShown) best_.choices.resize(kShown);
    return std::move(best_);
  }

 private:
  StepReport rehearsed(const PlanReport& report, const BatchParts& batch, int cut) {
    ++best_.num_rehearsed;
    return plan_step(report, {settings_.step.machine, cut_batch(batch, cut)});
  }
  // Of the batch that must fit; `timed` is that of the one that is timed.
  StepReport largest(const PlanReport& report, const StepReport& timed, int cut) {
    return settings_.largest.empty() ? timed : rehearsed(report, settings_.largest, cut);
  }

  bool fits_by_estimate(std::int64_t needed) const {
    return static_cast<double>(needed) <= kMemoryMargin * static_cast<double>(best_.budget);
  }
  bool fits_for_certain(std::int64_t needed) const {
    return kMemoryMargin * static_cast<double>(needed) <= static_cast<double>(best_.budget);
  }

  // What a way to recompute keeps and computes, however the model's state is spread.
  struct Computed {
    StepReport step;  // of the batch that must fit
    double seconds = 0;
    std::int64_t activations = 0;
  };
  Computed computed(const Recompute& recompute, int cut) {
    const PlanReport report =
        report_of(subject_, strategy_of(subject_.strategy, {}, recompute), cut);
    const StepReport timed = rehearsed(report, settings_.step.batch, cut);
    Computed all{.step = largest(report, timed, cut)};
    all.seconds = timed.time.seconds - timed.time.exposed - timed.time.update_seconds;
    all.activations = all.step.peak() - report.holdings.held.peak();
    return all;
  }

  // `spread`: the plan of that strategy, but for the share of what is recomputed.
  Candidate candidate_of(const PlanReport& spread, double share, const Computed& computed,
                         int cut) {
    const Machine& machine = settings_.step.machine;
    StepReport sum = computed.step;
    const auto& held = spread.holdings.held;
    sum.optimizer_state = held.peak() + computed.activations - sum.trace.memory.peak;
    Candidate candidate{spread.subject.strategy, cut, 0, sum.needed()};
    candidate.strategy.activations.share = share;
    candidate.seconds = std::max(computed.seconds, traffic_seconds(spread.plan, machine)) +
                        static_cast<double>(held.trainable_slices) / sizeof(float) * 32 /
                            (machine.update_gbs * 1e9);
    if (best_.least_needed == 0 || candidate.needed < best_.least_needed)
      best_.least_needed = candidate.needed;
    return candidate;
  }

  void estimate(int cut, std::vector<Candidate>& fitting) {
    const std::vector<Spreading> ways = spreadings(as_configured_, settings_.step.machine);
    std::vector<bool> whole_fits;  // nothing recomputed, spread in each way
    for (const Recompute& recompute : recomputations(as_configured_, settings_.may_offload)) {
      const Computed all = computed(recompute, cut);
      std::map<int, Computed> some;  // by part
      for (std::size_t i = 0; i < ways.size(); ++i) {
        const PlanReport spread =
            report_of(subject_, strategy_of(subject_.strategy, ways[i], recompute), cut);
        Candidate candidate = candidate_of(spread, 1, all, cut);
        ++best_.num_candidates;
        if (recompute.modules.empty()) whole_fits.push_back(fits_for_certain(candidate.needed));
        if (!fits_by_estimate(candidate.needed)) continue;
        if (!whole_fits[i]) recompute_less(spread, recompute, cut, some, fitting);
        fitting.push_back(std::move(candidate));
      }
    }
  }

  // Where something has to be recomputed, but not all of it: the smallest share that fits, and the
  // next ones as long as that is not certain. The smaller a share, the more is kept.
  void recompute_less(const PlanReport& spread, Recompute recompute, int cut,
                      std::map<int, Computed>& some, std::vector<Candidate>& fitting) {
    const std::vector<int> parts = parts_of(spread.plan);
    const auto with = [&](int part) {
      recompute.activations.share = static_cast<double>(part) / kParts;
      if (!some.contains(part)) some.emplace(part, computed(recompute, cut));
      return candidate_of(spread, recompute.activations.share, some.at(part), cut);
    };
    auto part = std::partition_point(parts.begin(), parts.end(),
                                     [&](int one) { return !fits_by_estimate(with(one).needed); });
    for (; part != parts.end(); ++part) {
      fitting.push_back(with(*part));
      ++best_.num_candidates;
      if (fits_for_certain(fitting.back().needed)) break;
    }
  }

  // Shares, in parts of kParts, that differ in what they recompute from each other and from all.
  static constexpr int kParts = 8;
  static std::vector<int> parts_of(const shard::ShardPlan& plan) {
    const auto recomputed_by = [&](int part) {
      std::vector<std::int64_t> modules;
      for (const std::int64_t of_entry : plan.checkpointable)
        if (of_entry > 0)
          modules.push_back(shard::share_of(static_cast<double>(part) / kParts, of_entry));
      return modules;
    };
    std::vector<int> parts;
    for (int part = 1; part < kParts; ++part)
      if (recomputed_by(part) != recomputed_by(kParts) &&
          (parts.empty() || recomputed_by(part) != recomputed_by(parts.back())))
        parts.push_back(part);
    return parts;
  }

  void try_out(const Candidate& candidate) {
    Choice choice{.strategy = candidate.strategy, .cut = candidate.cut};
    const PlanReport report = report_of(subject_, candidate.strategy, candidate.cut);
    choice.step = rehearsed(report, settings_.step.batch, candidate.cut);
    const StepReport most = largest(report, choice.step, candidate.cut);
    choice.needed = most.needed();
    choice.host_bytes = most.host_bytes;
    if (choice.needed > best_.budget) return;
    choice.words = words_of(choice.strategy, subject_.world_size, choice.cut);
    best_.choices.push_back(std::move(choice));
  }

  const PlanSubject& subject_;
  const SearchSettings& settings_;
  PlanReport as_configured_;
  Best best_;
};

}  // namespace

std::string reason_of(const Choice& choice, std::int64_t budget) {
  const StepTime& time = choice.step.time;
  char text[200];
  std::snprintf(text, sizeof text,
                "%.0f ms an update, %.0f tokens/s on each %s, waits %.0f ms; needs ",
                1e3 * time.seconds, choice.step.tokens_per_second() / choice.step.world_size,
                choice.step.settings.machine.of_cores() ? "rank" : "GPU", 1e3 * time.exposed);
  std::string reason = str(text, format_bytes(choice.needed), " of ", format_bytes(budget));
  if (choice.host_bytes > 0)
    reason += str(" and ", format_bytes(choice.host_bytes), " of the host");
  return reason;
}

Best find_best(const PlanSubject& subject, const SearchSettings& settings) {
  return Search(subject, settings).run();
}

std::string yaml_of(const Choice& choice) {
  const StrategyConfig& strategy = choice.strategy;
  std::string yaml = str("strategy:\n  sharding: ", shard::name_of(strategy.sharding), "\n");
  const bool in_nodes = strategy.frozen.sharding == shard::FrozenSharding::node;
  if (in_nodes || shard::entry_of(strategy.sharding).sliced_over == shard::SlicedOver::neighbours)
    yaml += str("  hybrid_shard_size: ", strategy.hybrid_shard_size, "\n");
  yaml += str("  frozen: {residency: ",
              strategy.frozen.residency == shard::Residency::resident ? "resident" : "sharded",
              ", sharding: ", in_nodes ? "node" : "all", "}\n");
  yaml +=
      str("  activation_checkpointing: [", join(strategy.activation_checkpointing, ", "), "]\n");
  if (!strategy.activation_checkpointing.empty())
    yaml += str(
        "  activations: {keep: ",
        strategy.activations.keep == ActivationsConfig::Keep::products ? "products" : "inputs",
        ", offload: ", strategy.activations.offload ? "true" : "false",
        strategy.activations.share == 1 ? "" : str(", share: ", strategy.activations.share), "}\n");
  if (choice.cut > 1)
    yaml += str("train:\n  gradient_accumulation: ", choice.step.trace.passes,
                "  # and batches of ", "1/", choice.cut, " of their size\n");
  return yaml;
}

std::string to_text(const Best& best) {
  std::string out = str(best.num_candidates, " candidates, ", best.num_rehearsed,
                        " rehearsals, budget ", format_bytes(best.budget), " of each GPU\n");
  if (best.choices.empty())
    return str(out, "Nothing fits: the least needs about ", format_bytes(best.least_needed),
               "; take more ranks, a smaller batch or a larger GPU.\n");
  for (std::size_t i = 0; i < best.choices.size(); ++i) {
    const Choice& choice = best.choices[i];
    out += str("\n", i + 1, ". ", choice.words, "\n   ", reason_of(choice, best.budget), "\n");
    if (i > 0) {
      const StepReport& first = best.choices[0].step;
      char text[160];
      std::snprintf(text, sizeof text, "   %+.1f%% against the first: %+.0f ms computing, ",
                    100 * (choice.step.time.seconds / first.time.seconds - 1),
                    1e3 * (choice.step.time.seconds - choice.step.time.exposed -
                           first.time.seconds + first.time.exposed));
      out += text;
      std::snprintf(text, sizeof text, "%+.0f ms waiting\n",
                    1e3 * (choice.step.time.exposed - first.time.exposed));
      out += text;
    }
    const std::string yaml = yaml_of(choice);
    for (std::size_t at = 0; at < yaml.size();) {
      const std::size_t end = yaml.find('\n', at);
      out += str("   ", yaml.substr(at, end - at), "\n");
      at = end + 1;
    }
  }
  return out;
}

nlohmann::ordered_json to_json(const Best& best) {
  nlohmann::ordered_json choices = nlohmann::ordered_json::array();
  for (const Choice& choice : best.choices)
    choices.push_back({{"words", choice.words},
                       {"seconds", choice.step.time.seconds},
                       {"exposed", choice.step.time.exposed},
                       {"needed_bytes", choice.needed},
                       {"host_bytes", choice.host_bytes},
                       {"tokens_per_second", choice.step.tokens_per_second()},
                       {"cut", choice.cut},
                       {"yaml", yaml_of(choice)}});
  return {{"budget_bytes", best.budget},
          {"candidates", best.num_candidates},
          {"rehearsed", best.num_rehearsed},
          {"least_needed_bytes", best.least_needed},
          {"best", choices}};
}

}  // namespace floe::plan
