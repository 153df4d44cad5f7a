// From a type known at run time to one known to the compiler.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "floe/kernels/launch.h"

namespace floe::kernels {

// Calls body with a zero of the C++ type.
template <class Body>
void dispatch(Type type, const Body& body) {
  switch (type) {
    case Type::f32: return body(float{});
    case Type::f16: return body(__half{});
    case Type::bf16: return body(__nv_bfloat16{});
  }
}

}  // namespace floe::kernels
