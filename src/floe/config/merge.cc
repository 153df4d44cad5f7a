#include "floe/config/merge.h"

namespace floe::config {

void merge(Value& base, const Value& over) {
  Map* into = base.as<Map>();
  const Map* from = over.as<Map>();
  if (!into || !from) {
    base = over;
    return;
  }
  base.origin = over.origin;
  for (const auto& [key, value] : *from) {
    if (Value* known = into->find(key))
      merge(*known, value);
    else
      (*into)[key] = value;
  }
}

}  // namespace floe::config
