// Which values share a chart, and what the charts say about them.
#include <algorithm>
#include <functional>
#include <set>

#include "floe/core/str.h"
#include "floe/observe/report/chart.h"
#include "floe/observe/report/html.h"
#include "floe/observe/report/sections.h"

namespace floe::report {
namespace {

struct Plot {
  std::string title, note;
  std::function<bool(const std::string&)> takes;  // the values that belong here
  bool bytes = false, log_scale = false, smooth = false;
};

struct Section {
  std::string title;
  std::string missing;  // said when no value of the section was logged
  std::vector<Plot> plots;
};

auto named(std::set<std::string> names) {
  return [names = std::move(names)](const std::string& name) { return names.contains(name); };
}
auto begins(std::string start) {
  return [start = std::move(start)](const std::string& name) { return name.starts_with(start); };
}
auto ends(std::string end) {
  return [end = std::move(end)](const std::string& name) { return name.ends_with(end); };
}

bool is_memory_bytes(const std::string& name) {
  return name.starts_with("memory") && name.ends_with("bytes");
}

// val_TASK_METRIC, where the metric is one of these.
bool is_score(const std::string& name, const std::vector<std::string>& metrics) {
  if (!name.starts_with("val_")) return false;
  const bool of_vqa = name.ends_with("_vqa_accuracy");
  return std::any_of(metrics.begin(), metrics.end(), [&](const std::string& metric) {
    return name.ends_with(metric) && of_vqa == (metric == "_vqa_accuracy");
  });
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all{
      {"Loss",
       "No loss was logged.",
       {{.title = "Loss per source",
         .note =
             "Mean over ranks, before the sources' weights. Faint: every step; strong: smoothed.",
         .takes = is_loss,
         .smooth = true}}},
      {"Validation",
       "",
       {{.title = "Validation loss", .note = "On held-out shards.", .takes = begins("val_loss")},
        {.title = "Validation perplexity", .note = "exp(loss).", .takes = begins("val_perplexity")},
        {.title = "Scores of tasks",
         .note = "Accuracy and ROC-AUC of train.validation.tasks, from 0 to 1.",
         .takes =
             [](const std::string& name) {
               return is_score(name, {"_accuracy", "_roc_auc"});
             }},
        {.title = "Scores of tasks in percent",
         .note = "CIDEr × 100 and VQA accuracy of train.validation.tasks.",
         .takes =
             [](const std::string& name) {
               return is_score(name, {"_cider", "_vqa_accuracy"});
             }},
        {.title = "Perplexity of tasks",
         .note = "Per word, of train.validation.tasks.",
         .takes = [](const std::string& name) { return is_score(name, {"_perplexity"}); }}}},
      {"Optimizer",
       "Neither learning rate nor gradient norm was logged.",
       {{.title = "Learning rate", .note = "", .takes = named({"lr"})},
        {.title = "Gradient norm",
         .note = "Of all trainable parameters on all ranks, before clipping.",
         .takes = begins("grad_norm"),
         .log_scale = true,
         .smooth = true},
        {.title = "Gradient noise scale",
         .note = "Samples; a batch far above it learns little more per step.",
         .takes = begins("gradient_noise"),
         .log_scale = true},
        {.title = "Loss scale",
         .note = "Of fp16.",
         .takes = named({"loss_scale"}),
         .log_scale = true}}},
      {"Throughput",
       "No throughput was logged.",
       {{.title = "Tokens per second",
         .note = "All ranks together.",
         .takes = ends("tokens_per_second")},
        {.title = "Samples per second",
         .note = "All ranks together.",
         .takes = ends("samples_per_second")},
        {.title = "Samples per second and rank",
         .note = "",
         .takes = ends("samples_per_second_per_gpu")},
        {.title = "Time per step",
         .note = "Seconds; data_time is the part spent waiting for data.",
         .takes = named({"step_time", "data_time"})},
        {.title = "Time per checkpoint",
         .note = "Seconds that the steps waited for a save.",
         .takes = named({"checkpoint_time"})},
        {.title = "Time per switch of phases",
         .note = "Seconds that the steps waited for another set of parameters to train.",
         .takes = named({"phase_switch_time"})},
        {.title = "TFLOP/s",
         .note = "Of rank 0: the model's own arithmetic.",
         .takes = named({"tflops"})},
        {.title = "Model FLOP utilisation",
         .note = "Share of the device's peak.",
         .takes = named({"mfu"})}}},
      {"Skipped batches and bad samples",
       "",
       {{.title = "Skipped batches",
         .note = "Their loss or gradients were not finite.",
         .takes = begins("skipped")},
        {.title = "Bad samples",
         .note = "Left out by the data pipeline.",
         .takes = begins("bad_samples")}}},
      {"Memory over time",
       "",
       {{.title = "Memory", .note = "", .takes = is_memory_bytes, .bytes = true}}},
  };
  return all;
}

std::vector<Band> bands_of(const Phases& phases) {
  const std::vector<std::string> names = phases.names();
  std::vector<Band> bands;
  for (const PhaseTurn& turn : phases.turns) {
    const auto place = std::find(names.begin(), names.end(), turn.name) - names.begin();
    bands.push_back({turn.name, turn.first_step, turn.last_step, static_cast<std::size_t>(place)});
  }
  return bands;
}

// What the single rate of the records leaves out.
std::string rates_note(const LoggedRun& run) {
  constexpr std::string_view kPatterns = "train.optimizer.lr_patterns.";
  std::vector<std::string> rates;
  for (const auto& [name, value] : run.settings)
    if (name.starts_with(kPatterns))
      rates.push_back(str(name.substr(kPatterns.size()), " at ", value));
  if (rates.empty()) return "";
  return str("Of what no pattern names. With rates of their own, before the schedule: ",
             join(rates, ", "), ".");
}

std::string section_html(const std::string& title, const std::string& charts) {
  return str("<section><h2>", title, "</h2><div class='charts'>", charts, "</div></section>");
}

// What no section knows: a chart each, or a row of a table for what was logged a few times only.
std::string other_values(const LoggedRun& run, const std::set<std::string>& placed) {
  constexpr std::int64_t kFewSteps = 3;
  std::string charts, rows;
  for (const auto& [name, series] : run.series) {
    if (placed.contains(name)) continue;
    if (series.count() > kFewSteps)
      charts += to_html({.title = name, .lines = {{name, &series}}});
    else if (series.count() > 0)
      rows += str("<tr><td>", escaped(name), "</td><td class='number'>",
                  series.buckets().back().last_step, "</td><td class='number'>",
                  short_number(series.last()), "</td></tr>");
  }
  std::string html;
  if (!charts.empty()) html += section_html("Other values", charts);
  if (!rows.empty())
    html +=
        str("<section><h2>Values of single steps</h2><table id='single'><tr><th></th><th "
            "class='number'>step</th><th class='number'>value</th></tr>",
            rows, "</table></section>");
  return html;
}

}  // namespace

std::string curve_sections(const LoggedRun& run) {
  if (run.num_records == 0) return "";
  std::string html;
  std::set<std::string> placed;
  for (const Section& section : sections()) {
    std::string charts;
    for (const Plot& plot : section.plots) {
      Chart chart{.title = plot.title,
                  .note = plot.note,
                  .bytes = plot.bytes,
                  .log_scale = plot.log_scale,
                  .smooth = plot.smooth};
      if (plot.takes("loss")) chart.bands = bands_of(run.phases);
      if (plot.takes("lr")) chart.note = rates_note(run);
      for (const auto& [name, series] : run.series)
        if (plot.takes(name) && placed.insert(name).second) chart.lines.push_back({name, &series});
      if (!chart.lines.empty()) charts += to_html(chart);
    }
    if (!charts.empty())
      html += section_html(section.title, charts);
    else if (!section.missing.empty())
      html += str("<section><h2>", section.title, "</h2><p class='none'>", section.missing,
                  "</p></section>");
  }
  return html + other_values(run, placed);
}

}  // namespace floe::report
