// How a 2-bit KV cache lies in memory, byte for byte as the public serving code keeps it. One set
// of buffers per layer. Pointers are device pointers for the kernels and host pointers for the CPU
// twins; the layout is the same. All tensors but lists of slots and log-sum-exps are at multiples
// of 16 bytes.
#pragma once

#include <cstdint>

#include "oscar/core/dtype.h"

namespace oscar {

// Slots are handed out in pages of this many consecutive ones (the public flush interval).
inline constexpr int64_t kSlotsPerPage = 8;

// Sizes shared by every tensor of one layer's cache.
struct CacheShape {
  int64_t heads = 0;   // KV heads
  int64_t dim = 0;     // channels of a head, equal for keys and values: 64, 128 or 256
  int64_t groups = 1;  // groups of dim / groups channels that share a (scale, zero), a power of 2
  DType scale_type = DType::kF32;  // f32, f16 or bf16: how scale and zero are stored

  int64_t CodeBytes() const { return dim / 4; }
  int64_t ScaleBytes() const { return 2 * groups * static_cast<int64_t>(DTypeSize(scale_type)); }
  // Bytes of K and V of one token in 2 bits, scales included, and in bf16.
  int64_t QuantisedTokenBytes() const { return 2 * heads * (CodeBytes() + ScaleBytes()); }
  int64_t RowTokenBytes() const { return 2 * heads * dim * 2; }
};

// The 2-bit tier. A row reconstructs as (code - zero) * scale; infinite scales and zeros of f16, as
// constant rows leave them, count as the largest finite number.
struct QuantisedCache {
  uint8_t* k_codes = nullptr;  // [slots, heads, dim / 4], quarter split: bits 2i of byte j hold
  uint8_t* v_codes = nullptr;  //   channel j + i * dim / 4
  void* k_scales = nullptr;    // [slots, heads, 2 * groups] of scale_type: scale, zero, scale, ...
  void* v_scales = nullptr;
  int64_t slots = 0;
};

// The bf16 tier (sink and recent windows, or a whole BF16 cache): rotated rows.
struct RowCache {
  BFloat16* k = nullptr;  // [slots, heads, dim]
  BFloat16* v = nullptr;
  int64_t slots = 0;
};

// Slot numbers, concatenated over requests in the order of the plan that uses them. Values are
// trusted: nothing on the device checks that they are below the slot count. Decode attention reads
// the low 32 bits of a number, which must be from 0 to 2^31 - 1; writes take all of int64.
struct SlotList {
  const void* data = nullptr;
  DType type = DType::kI32;  // i32 or i64
};

// Throws Error(kUnsupported) naming the value that the kernels do not handle: dim other than 64,
// 128 or 256, a number of groups that is no power of two or leaves less than 16 channels to each, a
// scale type that is not f32, f16 or bf16.
void CheckCacheShape(const CacheShape& shape);

// Throws Error(kUsage) naming "<what> of <where>" when `pointer` is no multiple of 16.
void CheckAligned(const void* pointer, const char* what, const char* where);

// Throws Error(kUnsupported) when `list` is neither i32 nor i64.
void CheckSlotType(const SlotList& list, const char* name);

}  // namespace oscar
