// Order statistics of |x| over rows held by four lanes. Device code.
//
// A lane holds two rows at once: the low half of each word belongs to one row, the high half to
// another. Magnitudes of bf16 numbers are 15-bit integers ordered like the numbers, so the pairs
// are compared as two unsigned 16-bit integers.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "oscar/cuda/write_networks.h"

namespace oscar {

// The rank-th largest (from 1, kLowest to kTop) magnitude of both rows; x [kWords] of signed bf16
// pairs in each of four lanes. Each lane keeps its kTop largest, sorted, and merges them
// with those of the lane beside it; the two lists that are left give the answer unmerged.
template <int kLowest, int kTop, int kWords>
__device__ __forceinline__ uint32_t RankLargest(const uint32_t (&x)[kWords], int rank) {
  static_assert(kWords % 16 == 0 && kTop <= 16);
  uint32_t top[kTop], other[kTop];
  LargestOf16<0>(x, top);
  LargestFrom<16>(x, top);
#pragma unroll
  for (int i = 0; i < kTop; ++i) other[i] = __shfl_xor_sync(~0U, top[i], 1);
  KeepLargest(top, other);
#pragma unroll
  for (int i = 0; i < kTop; ++i) other[i] = __shfl_xor_sync(~0U, top[i], 2);
  return (RankOfBothUpTo<kLowest, kTop>(top, other, rank) >> 1) & 0x7fff7fffU;
}

__device__ __forceinline__ __nv_bfloat162 AsPair(uint32_t x) {
  return *reinterpret_cast<const __nv_bfloat162*>(&x);
}
__device__ __forceinline__ uint32_t AsWord(__nv_bfloat162 x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}

struct RowPair {
  float low, high;
};

// How many magnitudes of each row are at least the bf16 numbers `bound`. Counts up to 256 are exact
// in bf16.
template <int kWords>
__device__ __forceinline__ RowPair CountAtLeast(const uint32_t (&x)[kWords], uint32_t bound) {
  __nv_bfloat162 count = __hge2(__habs2(AsPair(x[0])), AsPair(bound));
#pragma unroll
  for (int i = 1; i < kWords; ++i) {
    count = __hadd2(count, __hge2(__habs2(AsPair(x[i])), AsPair(bound)));
  }
  count = __hadd2(count, __shfl_xor_sync(~0U, count, 1));
  count = __hadd2(count, __shfl_xor_sync(~0U, count, 2));
  return {__low2float(count), __high2float(count)};
}

// The same statistic for any rank, bit by bit: the largest bound that `rank` magnitudes reach.
// Bounds that are no numbers are reached by none.
template <int kWords>
__device__ __forceinline__ uint32_t RankLargestByCounting(const uint32_t (&x)[kWords], int rank) {
  const auto wanted = static_cast<float>(rank);
  uint32_t low = 0, high = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const uint32_t try_low = low | (1U << bit), try_high = high | (1U << bit);
    const RowPair count = CountAtLeast(x, try_low | (try_high << 16));
    if (count.low >= wanted) low = try_low;
    if (count.high >= wanted) high = try_high;
  }
  return low | (high << 16);
}

// Threshold of the public decode flush: log2(dim) bisection steps on [0, max |x|] for at most
// `rank` magnitudes above it.
template <int kDim, int kWords>
__device__ __forceinline__ RowPair BisectThreshold(const uint32_t (&x)[kWords], int rank) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) largest = PairMax(largest, x[i] & 0x7fff7fffU);
  largest = PairMax(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = PairMax(largest, __shfl_xor_sync(~0U, largest, 2));
  RowPair low{0, 0};
  RowPair high{__uint_as_float(largest << 16), __uint_as_float(largest & 0xffff0000U)};
  const auto most = static_cast<float>(rank);
  constexpr int kSteps = kDim == 64 ? 6 : (kDim == 128 ? 7 : 8);
  for (int step = 0; step < kSteps; ++step) {
    const RowPair middle{(low.low + high.low) * 0.5F, (low.high + high.high) * 0.5F};
    // A bf16 magnitude exceeds `middle` if it exceeds its upper 16 bits.
    const uint32_t bound = ((__float_as_uint(middle.low) >> 16) + 1U) +
                           (((__float_as_uint(middle.high) >> 16) + 1U) << 16);
    const RowPair above = CountAtLeast(x, bound);
    (above.low > most ? low.low : high.low) = middle.low;
    (above.high > most ? low.high : high.high) = middle.high;
  }
  return high;
}

}  // namespace oscar
