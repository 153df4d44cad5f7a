#include "floe/core/dtype.h"

#include <array>

namespace floe {
namespace {

struct Row {
  DType dtype;
  std::int64_t size;
  std::string_view name, long_name, safetensors;
};

constexpr std::array<Row, 12> kRows{{
    {DType::f64, 8, "fp64", "float64", "F64"},
    {DType::f32, 4, "fp32", "float32", "F32"},
    {DType::f16, 2, "fp16", "float16", "F16"},
    {DType::bf16, 2, "bf16", "bfloat16", "BF16"},
    {DType::f8_e4m3, 1, "fp8", "float8_e4m3fn", "F8_E4M3"},
    {DType::f8_e5m2, 1, "fp8_e5m2", "float8_e5m2", "F8_E5M2"},
    {DType::i64, 8, "int64", "i64", "I64"},
    {DType::i32, 4, "int32", "i32", "I32"},
    {DType::i16, 2, "int16", "i16", "I16"},
    {DType::i8, 1, "int8", "i8", "I8"},
    {DType::u8, 1, "uint8", "u8", "U8"},
    {DType::boolean, 1, "bool", "boolean", "BOOL"},
}};

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::int64_t size_of(DType dtype) { return row(dtype).size; }
std::string_view name_of(DType dtype) { return row(dtype).name; }
std::string_view safetensors_name(DType dtype) { return row(dtype).safetensors; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const Row& r : kRows)
    if (r.safetensors == name) return r.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& r : kRows)
    if (r.name == name || r.long_name == name) return r.dtype;
  return std::nullopt;
}

}  // namespace floe
