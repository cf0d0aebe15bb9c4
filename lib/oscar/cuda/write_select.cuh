// Order statistics of |x| over rows held by four lanes. Device code.
//
// A lane holds two rows at once: the low half of each word belongs to one row, the high half to
// another. Magnitudes of bf16 numbers are 15-bit integers ordered like the numbers, so the pairs
// are compared as two unsigned 16-bit integers.
#pragma once

#include <cuda_bf16.h>

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

// Puts pairs of elements, given by their places, in order.
template <int kHigh, int kLow, int... kRest>
__device__ __forceinline__ void OrderPairs(uint32_t (&x)[16]) {
  Order(x[kHigh], x[kLow]);
  if constexpr (sizeof...(kRest) > 0) OrderPairs<kRest...>(x);
}

// Sorts descending with the fewest comparators known for 16 numbers, 60: M. W. Green's network of
// 1969 (Knuth, The Art of Computer Programming, volume 3, section 5.3.4). Comparators whose results
// nobody reads are dropped by the compiler.
__device__ __forceinline__ void SortDescending(uint32_t (&x)[16]) {
  OrderPairs<0, 13, 1, 12, 2, 15, 3, 14, 4, 8, 5, 6, 7, 11, 9, 10, 0, 5, 1, 7, 2, 9, 3, 4, 6, 13, 8,
             14, 10, 15, 11, 12, 0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13, 14, 15, 0, 2, 1, 3,
             4, 10, 5, 11, 6, 7, 8, 9, 12, 14, 13, 15, 1, 2, 3, 12, 4, 6, 5, 7, 8, 10, 9, 11, 13,
             14, 1, 4, 2, 6, 5, 8, 7, 10, 9, 13, 11, 14, 2, 4, 3, 6, 9, 12, 11, 13, 3, 5, 6, 8, 7,
             9, 10, 12, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 6, 7, 8, 9>(x);
}

// Batcher's odd-even merge of two lists sorted descending: their elements at even and at odd places
// are merged, and neighbours of the two results put in order.
template <int kSize>
__device__ __forceinline__ void Merge(const uint32_t (&a)[kSize], const uint32_t (&b)[kSize],
                                      uint32_t (&merged)[2 * kSize]) {
  if constexpr (kSize == 1) {
    merged[0] = PairMax(a[0], b[0]);
    merged[1] = PairMin(a[0], b[0]);
  } else {
    constexpr int kEven = (kSize + 1) / 2, kOdd = kSize / 2;
    uint32_t a_even[kEven], b_even[kEven], even[2 * kEven], a_odd[kOdd], b_odd[kOdd], odd[2 * kOdd];
#pragma unroll
    for (int i = 0; i < kEven; ++i) a_even[i] = a[2 * i], b_even[i] = b[2 * i];
#pragma unroll
    for (int i = 0; i < kOdd; ++i) a_odd[i] = a[2 * i + 1], b_odd[i] = b[2 * i + 1];
    Merge(a_even, b_even, even);
    Merge(a_odd, b_odd, odd);
    merged[0] = even[0];
#pragma unroll
    for (int i = 1; i < kSize; ++i) {
      merged[2 * i - 1] = PairMax(odd[i - 1], even[i]);
      merged[2 * i] = PairMin(odd[i - 1], even[i]);
    }
    merged[2 * kSize - 1] = kSize % 2 == 0 ? odd[2 * kOdd - 1] : even[2 * kEven - 1];
  }
}

// top := the kTop largest of the sorted lists top and other, sorted.
template <int kTop>
__device__ __forceinline__ void KeepLargest(uint32_t (&top)[kTop], const uint32_t (&other)[kTop]) {
  uint32_t merged[2 * kTop];
  Merge(top, other, merged);
#pragma unroll
  for (int i = 0; i < kTop; ++i) top[i] = merged[i];
}

// The kTop largest magnitudes among 16 words of x from kFirst on, sorted.
template <int kFirst, int kTop, int kWords>
__device__ __forceinline__ void LargestOf16(const uint32_t (&x)[kWords], uint32_t (&top)[kTop]) {
  uint32_t sorted[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) sorted[i] = x[kFirst + i] & 0x7fff7fffU;
  SortDescending(sorted);
#pragma unroll
  for (int i = 0; i < kTop; ++i) top[i] = sorted[i];
}

template <int kFirst, int kTop, int kWords>
__device__ __forceinline__ void LargestFrom(const uint32_t (&x)[kWords], uint32_t (&top)[kTop]) {
  if constexpr (kFirst < kWords) {
    uint32_t next[kTop];
    LargestOf16<kFirst>(x, next);
    KeepLargest(top, next);
    LargestFrom<kFirst + 16>(x, top);
  }
}

// The kRank-th largest of two sorted lists: either the kRank-th of one of them, or the smaller of
// the i-th of one and the (kRank - i)-th of the other.
template <int kRank, int kTop>
__device__ __forceinline__ uint32_t RankOfBoth(const uint32_t (&a)[kTop],
                                               const uint32_t (&b)[kTop]) {
  uint32_t result = PairMax(a[kRank - 1], b[kRank - 1]);
#pragma unroll
  for (int i = 1; i < kRank; ++i) result = PairMax(result, PairMin(a[i - 1], b[kRank - i - 1]));
  return result;
}

template <int kFirst, int kTop>
__device__ __forceinline__ uint32_t RankOfBothFrom(const uint32_t (&a)[kTop],
                                                   const uint32_t (&b)[kTop], int rank) {
  if constexpr (kFirst < kTop) {
    if (rank == kFirst) return RankOfBoth<kFirst>(a, b);
    return RankOfBothFrom<kFirst + 1>(a, b, rank);
  } else {
    return RankOfBoth<kTop>(a, b);
  }
}

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
  return RankOfBothFrom<kLowest>(top, other, rank);
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
