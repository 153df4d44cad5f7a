#include <algorithm>

#include "floe/io/pickle_node.h"

namespace floe::pickle {
namespace {

static_assert(kMostDepth == 500, "a message below says so");

constexpr int kEntered = -1;  // as a height: the node is being looked at

template <class Visit>
void for_each_child(const Value& value, const Visit& visit) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::tuple:
    case Kind::set:
    case Kind::frozen_set:
      for (const Value& item : value.items()) visit(item);
      break;
    case Kind::dict:
      for (const auto& [key, item] : value.entries()) visit(key), visit(item);
      break;
    case Kind::persistent: visit(value.persistent_id()); break;
    case Kind::object: {
      const Object& object = value.object();
      visit(object.callable), visit(object.args), visit(object.kwargs), visit(object.state);
      for (const Value& item : object.items) visit(item);
      for (const auto& [key, item] : object.entries) visit(key), visit(item);
      break;
    }
    default: break;
  }
}

}  // namespace

// Depth first with an own stack: each node is entered once, and left when all below it are done. One
// that is met again before it was left lies on a cycle.
std::string_view shape_problem(const Value& root) {
  std::vector<const Value*> path{&root};
  while (!path.empty()) {
    const Value& value = *path.back();
    const Node* node = value.identity();
    if (!node || node->height > 0) {
      path.pop_back();
    } else if (node->height == 0) {
      node->height = kEntered;
      bool cycle = false;
      for_each_child(value, [&](const Value& child) {
        const Node* below = child.identity();
        cycle = cycle || (below && below->height == kEntered);
        if (below && below->height == 0) path.push_back(&child);
      });
      if (cycle) return "holds a value that contains itself";
    } else {
      int below = 0;
      for_each_child(value, [&](const Value& child) {
        if (const Node* child_node = child.identity()) below = std::max(below, child_node->height);
      });
      if (below >= kMostDepth) return "is nested too deeply: floe reads 500 levels";
      node->height = below + 1;
      path.pop_back();
    }
  }
  return "";
}

}  // namespace floe::pickle
