#include <algorithm>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/observe/report/chart.h"
#include "floe/observe/report/html.h"
#include "floe/observe/report/sections.h"

namespace floe::report {
namespace {

// "optimizer_state.a" → "optimizer state of a"; names that no version of floe had stay as they are.
std::string owner_words(std::string key) {
  constexpr std::string_view kHost = "host.", kState = "optimizer_state.";
  static const std::map<std::string, std::string> known{
      {"parameters.trainable", "parameters that train"},
      {"parameters.resting", "parameters that rest"},
      {"parameters.frozen", "frozen parameters"},
      {"gradients", "gradients"},
      {"optimizer_state", "optimizer state"},
      {"averages", "averaged weights"},
      {"saves", "copies of saves"},
      {"gather_pool", "pool of gathered parameters"},
      {"gradient_pool", "pool of gradients before reduction"},
      {"rest", "the rest: activations, batches, what somebody keeps"}};
  std::string where;
  if (key.starts_with(kHost)) {
    key.erase(0, kHost.size());
    where = ", in host memory";
  }
  if (key.starts_with(kState)) return "optimizer state of " + key.substr(kState.size()) + where;
  const auto words = known.find(key);
  return (words == known.end() ? key : words->second) + where;
}

std::int64_t sum(const PhaseSwitch::Bytes& owners, bool host) {
  std::int64_t bytes = 0;
  for (const auto& [key, count] : owners)
    if (key.starts_with("host.") == host) bytes += count;
  return bytes;
}

std::int64_t find(const PhaseSwitch::Bytes& owners, const std::string& key) {
  for (const auto& [name, count] : owners)
    if (name == key) return count;
  return 0;
}

std::string number(const std::string& text) { return str("<td class='number'>", text, "</td>"); }

std::string row(const std::string& name, std::int64_t before, std::int64_t after) {
  return str("<tr><td>", name, "</td>", number(before ? format_bytes(before) : "-"),
             number(after ? format_bytes(after) : "-"), "</tr>");
}

std::string owners_table(const PhaseSwitch& at) {
  std::string html =
      "<div class='scroll'><table class='owners'><tr><th>owner</th><th class='number'>before</th>"
      "<th class='number'>after</th></tr>";
  const auto rows = [&](bool host) {
    for (const auto& [key, before] : at.before)
      if (key.starts_with("host.") == host)
        html += row(escaped(owner_words(key)), before, find(at.after, key));
    for (const auto& [key, after] : at.after)
      if (key.starts_with("host.") == host && find(at.before, key) == 0)
        html += row(escaped(owner_words(key)), 0, after);
  };
  rows(/*host=*/false);
  html += row("<b>together on the device</b>", sum(at.before, false), sum(at.after, false));
  rows(/*host=*/true);
  return html + "</table></div>";
}

// The first switch of each kind is open: later ones repeat it, or should.
std::string switches_html(const Phases& phases) {
  std::string html = "<h3>Memory of rank 0 at the switches</h3><div id='switches'>";
  std::vector<std::pair<std::string, std::string>> seen;
  for (const PhaseSwitch& at : phases.switches) {
    const std::pair kind{at.from, at.to};
    const bool is_first = std::find(seen.begin(), seen.end(), kind) == seen.end();
    if (is_first) seen.push_back(kind);
    html += str("<details class='card'", is_first ? " open" : "", "><summary>before step ", at.step,
                ": <b>", escaped(at.from), "</b> → <b>", escaped(at.to), "</b>, ",
                short_number(at.seconds), " s, ", format_bytes(sum(at.before, false)), " → ",
                format_bytes(sum(at.after, false)), " on the device");
    if (sum(at.before, true) + sum(at.after, true) > 0)
      html += str(", ", format_bytes(sum(at.before, true)), " → ",
                  format_bytes(sum(at.after, true)), " in host memory");
    html += str("</summary>", owners_table(at), "</details>");
  }
  if (phases.num_more_switches > 0)
    html += str("<p class='note'>", phases.num_more_switches, " later switches are not shown.</p>");
  return html + "</div>";
}

std::string turns_table(const Phases& phases) {
  std::string html =
      "<table id='phases'><tr><th>phase</th><th class='number'>turns</th><th class='number'>steps"
      "</th><th class='number'>first step</th><th class='number'>last step</th></tr>";
  const std::vector<std::string> names = phases.names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::int64_t turns = 0, steps = 0, first = 0, last = 0;
    for (const PhaseTurn& turn : phases.turns) {
      if (turn.name != names[i]) continue;
      if (turns++ == 0) first = turn.first_step;
      steps += turn.num_steps;
      last = turn.last_step;
    }
    html +=
        str("<tr><td><i class='swatch ", band_color(i), "'></i>", escaped(names[i]), "</td>",
            number(str(turns)), number(str(steps)), number(str(first)), number(str(last)), "</tr>");
  }
  return html + "</table>";
}

}  // namespace

std::string phase_section(const LoggedRun& run) {
  const Phases& phases = run.phases;
  if (phases.turns.empty() && phases.switches.empty()) return "";
  std::string html = "<section><h2>Phases</h2>";
  if (!phases.turns.empty())
    html +=
        str("<p class='note'>Which parameters trained when; the band in the chart of the loss "
            "has the same colours.</p>",
            turns_table(phases));
  if (phases.has_more_turns)
    html += str("<p class='note'>Only the first ", phases.turns.size(),
                " turns are shown and counted.</p>");
  if (!phases.switches.empty()) html += switches_html(phases);
  return html + "</section>";
}

}  // namespace floe::report
