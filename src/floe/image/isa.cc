#include "floe/image/isa.h"

namespace floe::image {

bool is_supported(Isa isa) {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2");
  if (isa == Isa::vnni)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
#endif
  return isa == Isa::plain;
}

Isa best_isa() {
  for (const Isa isa : {Isa::vnni, Isa::avx2})
    if (is_supported(isa)) return isa;
  return Isa::plain;
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::vnni: return "vnni";
    case Isa::avx2: return "avx2";
    case Isa::plain: return "plain";
  }
  return "";
}

}  // namespace floe::image
