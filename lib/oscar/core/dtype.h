// Element types of stored tensors, and the 16-bit floats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace oscar {

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// Bytes of one element.
size_t DTypeSize(DType type);

// Lower-case name: f64, f32, f16, bf16, i64, i32, i16, i8, u8, bool.
std::string_view DTypeName(DType type);

// bfloat16 as raw bits: the upper half of a float32.
struct BFloat16 {
  uint16_t bits;
};

// IEEE binary16 as raw bits.
struct Float16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
inline BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

// Exact, subnormals included.
float ToFloat(Float16 x);

// Rounds to nearest, ties to even, subnormals included; NaN stays NaN, overflow becomes infinity.
Float16 ToFloat16(float x);

// x rounded to bfloat16 and widened again.
inline float RoundToBFloat16(float x) { return ToFloat(ToBFloat16(x)); }

}  // namespace oscar
