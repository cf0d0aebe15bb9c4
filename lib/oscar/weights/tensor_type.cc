#include "oscar/weights/tensor_type.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "oscar/core/error.h"

// The loops below are written for the vectoriser and built once more for AVX2. The results are
// equal in both: every operation is exact or rounded once, and AVX2 alone has no fused ones.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define OSCAR_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OSCAR_VECTOR_CLONES
#endif

namespace oscar {
namespace {

static_assert(std::endian::native == std::endian::little, "weight files are little-endian");

struct Traits {
  std::string_view name;
  int64_t values;
  int64_t bytes;
};

// Indexed by TensorType.
constexpr Traits kTraits[] = {{"F32", 1, 4},      {"F16", 1, 2},     {"BF16", 1, 2},
                              {"Q8_0", 32, 34},   {"Q4_0", 32, 18},  {"Q4_1", 32, 20},
                              {"Q5_0", 32, 22},   {"Q5_1", 32, 24},  {"Q4_K", 256, 144},
                              {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};

const Traits& TraitsOf(TensorType type) { return kTraits[static_cast<size_t>(type)]; }

// IEEE binary16 to float32 without branches: the exponent is moved by a multiplication by 2^112,
// which is exact and normalises subnormals; infinities and NaN get their exponent afterwards.
inline float Half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const uint32_t special = magnitude >= 0x0f800000U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline float HalfAt(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return Half(bits);
}

OSCAR_VECTOR_CLONES void FromF16(const uint8_t* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = Half(bits);
  }
}

OSCAR_VECTOR_CLONES void FromBF16(const uint8_t* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

// d, then 32 signed bytes: x = q d.
OSCAR_VECTOR_CLONES void FromQ8_0(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 34, out += 32) {
    const float d = HalfAt(block);
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
    }
  }
}

// d, then 16 bytes: value i in the low, value i + 16 in the high nibble: x = (q - 8) d.
OSCAR_VECTOR_CLONES void FromQ4_0(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 18, out += 32) {
    const float d = HalfAt(block);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>((block[2 + i] & 15) - 8) * d;
      out[i + 16] = static_cast<float>((block[2 + i] >> 4) - 8) * d;
    }
  }
}

// d, m, then 16 bytes as in Q4_0: x = q d + m.
OSCAR_VECTOR_CLONES void FromQ4_1(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 20, out += 32) {
    const float d = HalfAt(block);
    const float m = HalfAt(block + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>(block[4 + i] & 15) * d + m;
      out[i + 16] = static_cast<float>(block[4 + i] >> 4) * d + m;
    }
  }
}

// The fifth bits of the 32 values of a Q5_0 or Q5_1 block, one a byte, in place 4.
inline void FifthBits(const uint8_t* high, uint8_t* bits) {
  uint32_t word;
  std::memcpy(&word, high, 4);
  for (unsigned i = 0; i < 32; ++i) bits[i] = static_cast<uint8_t>(((word >> i) & 1U) << 4);
}

// d, 32 fifth bits, then 16 bytes as in Q4_0: x = (q - 16) d.
OSCAR_VECTOR_CLONES void FromQ5_0(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 22, out += 32) {
    const float d = HalfAt(block);
    uint8_t high[32];
    FifthBits(block + 2, high);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>(((block[6 + i] & 15) | high[i]) - 16) * d;
      out[i + 16] = static_cast<float>(((block[6 + i] >> 4) | high[i + 16]) - 16) * d;
    }
  }
}

// d, m, 32 fifth bits, then 16 bytes as in Q4_0: x = q d + m.
OSCAR_VECTOR_CLONES void FromQ5_1(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 24, out += 32) {
    const float d = HalfAt(block);
    const float m = HalfAt(block + 2);
    uint8_t high[32];
    FifthBits(block + 4, high);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>((block[8 + i] & 15) | high[i]) * d + m;
      out[i + 16] = static_cast<float>((block[8 + i] >> 4) | high[i + 16]) * d + m;
    }
  }
}

// The eight 6-bit scales and minima of a Q4_K or Q5_K block, packed in 12 bytes: the low six bits
// of bytes 0-3 and 4-7 are scales and minima 0-3; scales and minima 4-7 have their low nibbles in
// bytes 8-11 and their upper two bits on top of bytes 0-7.
inline void ScalesAndMinima(const uint8_t* packed, uint8_t* scales, uint8_t* minima) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = packed[i] & 63;
    minima[i] = packed[i + 4] & 63;
    scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | ((packed[i] >> 6) << 4));
    minima[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4));
  }
}

// d, dmin, 12 bytes of scales, then 4 x 32 bytes: byte i of part p holds value i of group 2p in the
// low and of group 2p + 1 in the high nibble: x = (d scale) q - (dmin minimum).
OSCAR_VECTOR_CLONES void FromQ4K(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 144, out += 256) {
    const float d = HalfAt(block);
    const float dmin = HalfAt(block + 2);
    uint8_t scales[8], minima[8];
    ScalesAndMinima(block + 4, scales, minima);
    for (int part = 0; part < 4; ++part) {
      const uint8_t* q = block + 16 + 32 * part;
      float* low = out + 64 * part;
      const float d0 = d * scales[2 * part], m0 = dmin * minima[2 * part];
      const float d1 = d * scales[2 * part + 1], m1 = dmin * minima[2 * part + 1];
      for (int i = 0; i < 32; ++i) {
        low[i] = d0 * static_cast<float>(q[i] & 15) - m0;
        low[i + 32] = d1 * static_cast<float>(q[i] >> 4) - m1;
      }
    }
  }
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte i belongs to value i of
// group g.
OSCAR_VECTOR_CLONES void FromQ5K(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 176, out += 256) {
    const float d = HalfAt(block);
    const float dmin = HalfAt(block + 2);
    uint8_t scales[8], minima[8];
    ScalesAndMinima(block + 4, scales, minima);
    const uint8_t* high = block + 16;
    for (int part = 0; part < 4; ++part) {
      const uint8_t* q = block + 48 + 32 * part;
      float* low = out + 64 * part;
      const float d0 = d * scales[2 * part], m0 = dmin * minima[2 * part];
      const float d1 = d * scales[2 * part + 1], m1 = dmin * minima[2 * part + 1];
      for (int i = 0; i < 32; ++i) {
        const int bits = high[i] >> (2 * part);
        low[i] = d0 * static_cast<float>((q[i] & 15) | ((bits & 1) << 4)) - m0;
        low[i + 32] = d1 * static_cast<float>((q[i] >> 4) | ((bits & 2) << 3)) - m1;
      }
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one per 16 values), d:
// x = (d scale) (q - 32). Each half of the block holds four groups of 32: nibble byte i is value i
// of group 0 (low) and 2 (high), nibble byte i + 32 of groups 1 and 3, and bits 2g, 2g + 1 of
// upper byte i belong to value i of group g.
OSCAR_VECTOR_CLONES void FromQ6K(const uint8_t* block, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, block += 210, out += 256) {
    const float d = HalfAt(block + 208);
    for (int half = 0; half < 2; ++half) {
      const uint8_t* nibbles = block + 64 * half;
      const uint8_t* upper = block + 128 + 32 * half;
      const uint8_t* scales = block + 192 + 8 * half;
      for (int group = 0; group < 4; ++group) {
        const uint8_t* q = nibbles + 32 * (group & 1);
        const int nibble_shift = 4 * (group >> 1);
        const int upper_shift = 2 * group;
        float* to = out + 128 * half + 32 * group;
        for (int part = 0; part < 2; ++part) {
          const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * group + part]));
          for (int i = 16 * part; i < 16 * part + 16; ++i) {
            const int low = (q[i] >> nibble_shift) & 15;
            const int high = (upper[i] >> upper_shift) & 3;
            to[i] = scale * static_cast<float>((low | (high << 4)) - 32);
          }
        }
      }
    }
  }
}

OSCAR_VECTOR_CLONES uint32_t LargestMagnitudeBits(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, 4);
    largest = std::max(largest, bits & 0x7fffffffU);
  }
  return largest;
}

}  // namespace

std::string_view TensorTypeName(TensorType type) { return TraitsOf(type).name; }
int64_t BlockValues(TensorType type) { return TraitsOf(type).values; }
int64_t BlockBytes(TensorType type) { return TraitsOf(type).bytes; }

void Dequantise(TensorType type, const uint8_t* source, int64_t count, float* out) {
  OSCAR_CHECK(count % BlockValues(type) == 0);
  if (count == 0) return;
  const int64_t blocks = count / BlockValues(type);
  switch (type) {
    case TensorType::kF32:
      std::memcpy(out, source, static_cast<size_t>(count) * 4);
      return;
    case TensorType::kF16:
      return FromF16(source, count, out);
    case TensorType::kBF16:
      return FromBF16(source, count, out);
    case TensorType::kQ8_0:
      return FromQ8_0(source, blocks, out);
    case TensorType::kQ4_0:
      return FromQ4_0(source, blocks, out);
    case TensorType::kQ4_1:
      return FromQ4_1(source, blocks, out);
    case TensorType::kQ5_0:
      return FromQ5_0(source, blocks, out);
    case TensorType::kQ5_1:
      return FromQ5_1(source, blocks, out);
    case TensorType::kQ4K:
      return FromQ4K(source, blocks, out);
    case TensorType::kQ5K:
      return FromQ5K(source, blocks, out);
    case TensorType::kQ6K:
      return FromQ6K(source, blocks, out);
  }
  OSCAR_CHECK(false);
}

int64_t FirstNonFinite(const float* values, int64_t count) {
  constexpr uint32_t kInfinity = 0x7f800000U;
  if (LargestMagnitudeBits(values, count) < kInfinity) return -1;
  for (int64_t i = 0; i < count; ++i) {
    if ((std::bit_cast<uint32_t>(values[i]) & 0x7fffffffU) >= kInfinity) return i;
  }
  return -1;
}

}  // namespace oscar
