// The units of the model as a tree along their dotted names, with what each holds.
#include <map>
#include <memory>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/report/html.h"
#include "floe/report/sections.h"

namespace floe::report {
namespace {

constexpr std::size_t kMostDepth = 32;    // deeper names hang below as they are
constexpr std::size_t kMostUnits = 5000;  // a page with more is of no use

struct Node {
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> children;  // in the order of the units
  std::vector<const Unit*> units;
  std::int64_t num_units = 0, trainable_numel = 0, frozen_numel = 0;  // with everything below

  Node& child(const std::string& name) {
    for (auto& [known, node] : children)
      if (known == name) return *node;
    return *children.emplace_back(name, std::make_unique<Node>()).second;
  }
  void count(const Unit& unit) {
    ++num_units;
    for (const UnitGroup& group : unit.groups)
      (group.trainable ? trainable_numel : frozen_numel) += group.numel;
  }
};

void place(const Unit& unit, Node& root) {
  Node* node = &root;
  node->count(unit);
  std::string rest = unit.name;
  for (std::size_t depth = 1; !rest.empty(); ++depth) {
    const std::size_t dot = depth < kMostDepth ? rest.find('.') : std::string::npos;
    node = &node->child(rest.substr(0, dot));
    node->count(unit);
    rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
  }
  node->units.push_back(&unit);
}

std::string unit_html(const Unit& unit) {
  std::string html;
  for (const UnitGroup& group : unit.groups)
    html += str("<div class='unit'>", escaped(group.name), ": ", format_count(group.numel), " ",
                escaped(group.dtype), group.trainable ? " trainable" : " frozen",
                group.resident ? ", resident" : "", ", ", format_bytes(group.shard_bytes),
                " per rank</div>");
  return html;
}

std::string node_html(const std::string& name, const Node& node, bool open) {
  std::string title = str("<b>", escaped(name), "</b>");
  for (const Unit* unit : node.units) {
    title += str("<span class='tag'>", escaped(unit->class_name), "</span>");
    if (unit->checkpointed) title += "<span class='tag'>checkpointed</span>";
  }
  if (!node.children.empty())
    title += str(" <span class='note'>", node.num_units, node.num_units == 1 ? " unit" : " units",
                 ", ", format_count(node.trainable_numel), " trainable, ",
                 format_count(node.frozen_numel), " frozen</span>");
  std::string html = str("<details", open ? " open" : "", "><summary>", title, "</summary>");
  for (const Unit* unit : node.units) html += unit_html(*unit);
  for (const auto& [child_name, child] : node.children)
    html += node_html(child_name, *child, false);
  return html + "</details>";
}

}  // namespace

std::string unit_section(const RunFolder& run) {
  if (!run.diagnostics) return "";
  std::string html = "<section><h2>Units</h2>";
  const auto& units = run.diagnostics->units;
  if (units.empty()) return html + "<p class='none'>No unit was recorded.</p></section>";
  Node root;
  for (std::size_t i = 0; i < units.size() && i < kMostUnits; ++i) place(units[i], root);
  html += str("<p class='note'>", units.size(),
              units.size() == 1 ? " unit: " : " units: ", format_count(root.trainable_numel),
              " elements train, ", format_count(root.frozen_numel), " are frozen.</p>");
  if (units.size() > kMostUnits)
    html += str("<p class='bad'>Only the first ", kMostUnits, " are shown.</p>");
  html += "<div id='units'>";
  for (const Unit* unit : root.units)  // the model itself
    html += str("<div>", escaped(unit->class_name), "</div>", unit_html(*unit));
  for (const auto& [name, node] : root.children) html += node_html(name, *node, true);
  return html + "</div></section>";
}

}  // namespace floe::report
