#include "floe/config/load.h"

namespace floe::config {

void adopt_origins(Value& values, const Value& from) {
  static const Value kNone;
  values.origin = from.origin.source ? from.origin : Origin::of_default();
  if (values.data.index() == from.data.index() && values == from) values.spelling = from.spelling;
  const Map* other_map = from.as<Map>();
  if (auto* map = values.as<Map>())
    for (auto& [key, value] : *map) {
      const Value* other = other_map ? other_map->find(key) : nullptr;
      adopt_origins(value, other ? *other : kNone);
    }
  const List* other_list = from.as<List>();
  if (auto* list = values.as<List>())
    for (std::size_t i = 0; i < list->size(); ++i)
      adopt_origins((*list)[i], other_list && i < other_list->size() ? (*other_list)[i] : kNone);
}

void set_origin(Value& values, const Override& change) {
  Value* value = &values;
  for (const std::string& key : change.path) {
    Map* map = value->as<Map>();
    value = map ? map->find(key) : nullptr;
    if (!value) return;
  }
  if (value->is_scalar()) value->origin = change.value.origin;
}

std::string print_config(const Value& values) {
  Value copy = values;
  escape_references(copy);
  return write_yaml(copy, Comments::origins);
}

}  // namespace floe::config
