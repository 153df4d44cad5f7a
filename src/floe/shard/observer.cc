#include "floe/shard/observer.h"

namespace floe::shard {

const char* name_of(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::gather: return "gather";
    case Event::Kind::prefetch: return "prefetch";
    case Event::Kind::begin_wait: return "begin wait";
    case Event::Kind::wait: return "wait";
    case Event::Kind::release: return "release";
    case Event::Kind::keep: return "keep";
    case Event::Kind::reduce: return "reduce";
    case Event::Kind::replicate: return "replicate";
    case Event::Kind::agree: return "agree";
    case Event::Kind::begin_forward: return "begin forward";
    case Event::Kind::end_forward: return "end forward";
    case Event::Kind::begin_backward: return "begin backward";
    case Event::Kind::end_backward: return "end backward";
  }
  return "?";
}

}  // namespace floe::shard
