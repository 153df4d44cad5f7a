// Element types of tensors in files and plans; torch-free, so that io and plan need no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace floe {

enum class DType { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, i8, u8, boolean };

std::int64_t size_of(DType dtype);
// The short name of configurations and reports: "fp32", "bf16", "int64".
std::string_view name_of(DType dtype);
// The name in safetensors headers: "F32", "BF16", "I64".
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);
// Accepts short and long names: fp32, float32, f32, bf16, bfloat16, ...
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace floe
