#include "floe/image/isa.h"

namespace floe::image {

bool is_supported(Isa isa) {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2");
#endif
  return isa == Isa::plain;
}

Isa best_isa() { return is_supported(Isa::avx2) ? Isa::avx2 : Isa::plain; }

std::string_view name_of(Isa isa) { return isa == Isa::avx2 ? "avx2" : "plain"; }

}  // namespace floe::image
