// Which instructions of the processor the kernels use; the results are the same bytes.
#pragma once

#include <string_view>

namespace floe::image {

// vnni: AVX-512 VNNI on 256 bits.
enum class Isa { plain, avx2, vnni };

// The best that this processor has.
Isa best_isa();
bool is_supported(Isa isa);
std::string_view name_of(Isa isa);

}  // namespace floe::image
