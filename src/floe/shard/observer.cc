#include "floe/shard/observer.h"

namespace floe::shard {

const char* name_of(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::gather: return "gather";
    case Event::Kind::prefetch: return "prefetch";
    case Event::Kind::wait: return "wait";
    case Event::Kind::release: return "release";
    case Event::Kind::keep: return "keep";
    case Event::Kind::reduce: return "reduce";
    case Event::Kind::replicate: return "replicate";
    case Event::Kind::agree: return "agree";
  }
  return "?";
}

}  // namespace floe::shard
