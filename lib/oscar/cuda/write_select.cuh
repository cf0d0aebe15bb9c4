// Order statistics of |x| over rows held by four lanes. Device code.
//
// A lane holds two rows at once: the low half of each word belongs to one row, the high half to
// another. Magnitudes of bf16 numbers are 15-bit integers ordered like the numbers, so the pairs
// are compared as two unsigned 16-bit integers.
#pragma once

#include <cstdint>

namespace oscar {

__device__ __forceinline__ uint32_t PairMax(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("max.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

__device__ __forceinline__ uint32_t PairMin(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("min.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

__device__ __forceinline__ void Order(uint32_t& high, uint32_t& low) {
  const uint32_t top = PairMax(high, low);
  low = PairMin(high, low);
  high = top;
}

// Batcher's odd-even merge sort, descending. Recursion instead of loops over the strides keeps all
// indices compile-time constants.
template <int kSize, int kRun, int kStride>
__device__ __forceinline__ void OddEvenPass(uint32_t (&x)[kSize]) {
  constexpr int kSkip = kStride % kRun;
#pragma unroll
  for (int i = kSkip; i + kStride < kSize; ++i) {
    if ((i - kSkip) / kStride % 2 == 0 && i / (2 * kRun) == (i + kStride) / (2 * kRun)) {
      Order(x[i], x[i + kStride]);
    }
  }
  if constexpr (kStride > 1) OddEvenPass<kSize, kRun, kStride / 2>(x);
}

template <int kSize, int kRun = 1>
__device__ __forceinline__ void SortDescending(uint32_t (&x)[kSize]) {
  OddEvenPass<kSize, kRun, kRun>(x);
  if constexpr (2 * kRun < kSize) SortDescending<kSize, 2 * kRun>(x);
}

// Sorts a sequence that rises and then falls (or a rotation of one), descending.
template <int kSize, int kStride = kSize / 2>
__device__ __forceinline__ void SortBitonic(uint32_t (&x)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if ((i & kStride) == 0) Order(x[i], x[i + kStride]);
  }
  if constexpr (kStride > 1) SortBitonic<kSize, kStride / 2>(x);
}

// The rank-th largest (from 1, at most kTop) magnitude of both rows; x [kWords] of signed bf16
// pairs in each of four lanes. Keeps the kTop largest of what it has seen, sorted: of two sorted
// lists a and b the largest are max(a_i, b_(kTop - 1 - i)).
template <int kTop, int kWords>
__device__ __forceinline__ uint32_t RankLargest(const uint32_t (&x)[kWords], int rank) {
  static_assert(kWords % kTop == 0);
  uint32_t top[kTop];
#pragma unroll
  for (int i = 0; i < kTop; ++i) top[i] = x[i] & 0x7fff7fffU;
  SortDescending<kTop>(top);
#pragma unroll
  for (int begin = kTop; begin < kWords; begin += kTop) {
    uint32_t next[kTop];
#pragma unroll
    for (int i = 0; i < kTop; ++i) next[i] = x[begin + i] & 0x7fff7fffU;
    SortDescending<kTop>(next);
#pragma unroll
    for (int i = 0; i < kTop; ++i) top[i] = PairMax(top[i], next[kTop - 1 - i]);
    SortBitonic<kTop>(top);
  }
#pragma unroll
  for (int lane = 1; lane <= 2; lane *= 2) {
    uint32_t other[kTop];
#pragma unroll
    for (int i = 0; i < kTop; ++i) other[i] = __shfl_xor_sync(~0U, top[kTop - 1 - i], lane);
#pragma unroll
    for (int i = 0; i < kTop; ++i) top[i] = PairMax(top[i], other[i]);
    SortBitonic<kTop>(top);
  }
  uint32_t result = 0;
#pragma unroll
  for (int i = 0; i < kTop; ++i) result |= top[i] & (i == rank - 1 ? ~0U : 0U);
  return result;
}

// How many magnitudes x (signs cleared) of each row are at least `bound`, integers up to 0x8000.
template <int kWords>
__device__ __forceinline__ uint32_t CountAtLeast(const uint32_t (&x)[kWords], uint32_t bound) {
  uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    // With the top bit set the halves cannot borrow from one another; it survives where x >= bound.
    count += (((x[i] | 0x80008000U) - bound) >> 15) & 0x00010001U;
  }
  count += __shfl_xor_sync(~0U, count, 1);
  return count + __shfl_xor_sync(~0U, count, 2);
}

// The same statistic for any rank, bit by bit: the largest bound that `rank` magnitudes reach.
template <int kWords>
__device__ __forceinline__ uint32_t RankLargestByCounting(const uint32_t (&signed_x)[kWords],
                                                          int rank) {
  uint32_t x[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) x[i] = signed_x[i] & 0x7fff7fffU;
  uint32_t low = 0, high = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const uint32_t try_low = low | (1U << bit), try_high = high | (1U << bit);
    const uint32_t count = CountAtLeast(x, try_low | (try_high << 16));
    if (static_cast<int>(count & 0xffffU) >= rank) low = try_low;
    if (static_cast<int>(count >> 16) >= rank) high = try_high;
  }
  return low | (high << 16);
}

struct RowPair {
  float low, high;
};

// Threshold of the public decode flush: log2(dim) bisection steps on [0, max |x|] for at most
// `rank` magnitudes above it.
template <int kDim, int kWords>
__device__ __forceinline__ RowPair BisectThreshold(const uint32_t (&x)[kWords], int rank) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) largest = PairMax(largest, x[i] & 0x7fff7fffU);
  largest = PairMax(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = PairMax(largest, __shfl_xor_sync(~0U, largest, 2));
  uint32_t magnitudes[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) magnitudes[i] = x[i] & 0x7fff7fffU;
  RowPair low{0, 0};
  RowPair high{__uint_as_float(largest << 16), __uint_as_float(largest & 0xffff0000U)};
  constexpr int kSteps = kDim == 64 ? 6 : (kDim == 128 ? 7 : 8);
  for (int step = 0; step < kSteps; ++step) {
    const RowPair middle{(low.low + high.low) * 0.5F, (low.high + high.high) * 0.5F};
    // A bf16 magnitude exceeds `middle` if it exceeds its upper 16 bits.
    const uint32_t bound = ((__float_as_uint(middle.low) >> 16) + 1U) +
                           (((__float_as_uint(middle.high) >> 16) + 1U) << 16);
    const uint32_t above = CountAtLeast(magnitudes, bound);
    (static_cast<int>(above & 0xffffU) > rank ? low.low : high.low) = middle.low;
    (static_cast<int>(above >> 16) > rank ? low.high : high.high) = middle.high;
  }
  return high;
}

}  // namespace oscar
