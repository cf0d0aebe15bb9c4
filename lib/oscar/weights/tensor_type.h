// Element types of stored weights, plain and block-quantised, and their conversion to float32.
#pragma once

#include <cstdint>
#include <string_view>

namespace oscar {

// The quantised types are those of GGUF: blocks of 32 (or 256, the K types) values that share
// scales. docs/formats/model-weights.md gives their layouts.
enum class TensorType { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4K, kQ5K, kQ6K };

inline constexpr TensorType kAllTensorTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,
    TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1,
    TensorType::kQ4K,  TensorType::kQ5K,  TensorType::kQ6K};

// Name as the file formats spell it: "F32", "Q4_K".
std::string_view TensorTypeName(TensorType type);
// Values of one block; 1 for the plain types.
int64_t BlockValues(TensorType type);
// Bytes of one block, or of one element for the plain types.
int64_t BlockBytes(TensorType type);

// Converts `count` values (a multiple of BlockValues) at `source`, which needs no alignment, to
// float32. Products and sums are rounded one by one to float32, without fused operations, so the
// result equals the reference implementations' bit for bit.
void Dequantise(TensorType type, const uint8_t* source, int64_t count, float* out);

// Index of the first value that is NaN or infinite, or -1.
int64_t FirstNonFinite(const float* values, int64_t count);

}  // namespace oscar
