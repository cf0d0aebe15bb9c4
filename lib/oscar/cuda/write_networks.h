// Sorting networks for pairs of 16-bit numbers: how the write kernel selects. For the device and,
// so that they can be tested exhaustively, for the host.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define OSCAR_NETWORK __device__ __forceinline__
#define OSCAR_UNROLL _Pragma("unroll")
#else
#define OSCAR_NETWORK inline
#define OSCAR_UNROLL
#endif

namespace oscar {

// Larger and smaller numbers of the lower halves and of the upper halves.
#ifdef __CUDACC__
OSCAR_NETWORK uint32_t PairMax(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("max.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
OSCAR_NETWORK uint32_t PairMin(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("min.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
#else
OSCAR_NETWORK uint32_t PairMax(uint32_t a, uint32_t b) {
  const uint32_t high = a >> 16 > b >> 16 ? a : b, low = (a & 0xffffU) > (b & 0xffffU) ? a : b;
  return (high & 0xffff0000U) | (low & 0xffffU);
}
OSCAR_NETWORK uint32_t PairMin(uint32_t a, uint32_t b) { return a ^ b ^ PairMax(a, b); }
#endif

OSCAR_NETWORK void Order(uint32_t& high, uint32_t& low) {
  const uint32_t top = PairMax(high, low);
  low = PairMin(high, low);
  high = top;
}

// Puts pairs of elements, given by their places, in order.
template <size_t kHigh, size_t kLow, size_t... kRest>
OSCAR_NETWORK void OrderPairs(uint32_t (&x)[16]) {
  Order(x[kHigh], x[kLow]);
  if constexpr (sizeof...(kRest) > 0) OrderPairs<kRest...>(x);
}

// Sorts descending with 60 comparators, the fewest known for 16 numbers; all patterns of zeros and
// ones are tried in tests/cuda/networks_test.cc. Comparators whose results nobody reads are dropped
// by the compiler, so that only the largest few cost what they must.
OSCAR_NETWORK void SortDescending(uint32_t (&x)[16]) {
  OrderPairs<0, 13, 1, 12, 2, 15, 3, 14, 4, 8, 5, 6, 7, 11, 9, 10, 0, 5, 1, 7, 2, 9, 3, 4, 6, 13, 8,
             14, 10, 15, 11, 12, 0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13, 14, 15, 0, 2, 1, 3,
             4, 10, 5, 11, 6, 7, 8, 9, 12, 14, 13, 15, 1, 2, 3, 12, 4, 6, 5, 7, 8, 10, 9, 11, 13,
             14, 1, 4, 2, 6, 5, 8, 7, 10, 9, 13, 11, 14, 2, 4, 3, 6, 9, 12, 11, 13, 3, 5, 6, 8, 7,
             9, 10, 12, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 6, 7, 8, 9>(x);
}

// Batcher's odd-even merge of two lists sorted descending: their elements at even and at odd places
// are merged, and neighbours of the two results put in order.
template <size_t kSize>
OSCAR_NETWORK void Merge(const uint32_t (&a)[kSize], const uint32_t (&b)[kSize],
                         uint32_t (&merged)[2 * kSize]) {
  if constexpr (kSize == 1) {
    merged[0] = PairMax(a[0], b[0]);
    merged[1] = PairMin(a[0], b[0]);
  } else {
    constexpr size_t kEven = (kSize + 1) / 2, kOdd = kSize / 2;
    uint32_t a_even[kEven], b_even[kEven], even[2 * kEven], a_odd[kOdd], b_odd[kOdd], odd[2 * kOdd];
    OSCAR_UNROLL
    for (size_t i = 0; i < kEven; ++i) a_even[i] = a[2 * i], b_even[i] = b[2 * i];
    OSCAR_UNROLL
    for (size_t i = 0; i < kOdd; ++i) a_odd[i] = a[2 * i + 1], b_odd[i] = b[2 * i + 1];
    Merge(a_even, b_even, even);
    Merge(a_odd, b_odd, odd);
    merged[0] = even[0];
    OSCAR_UNROLL
    for (size_t i = 1; i < kSize; ++i) {
      merged[2 * i - 1] = PairMax(odd[i - 1], even[i]);
      merged[2 * i] = PairMin(odd[i - 1], even[i]);
    }
    merged[2 * kSize - 1] = kSize % 2 == 0 ? odd[2 * kOdd - 1] : even[2 * kEven - 1];
  }
}

// top := the kTop largest of the sorted lists top and other, sorted.
template <size_t kTop>
OSCAR_NETWORK void KeepLargest(uint32_t (&top)[kTop], const uint32_t (&other)[kTop]) {
  uint32_t merged[2 * kTop];
  Merge(top, other, merged);
  OSCAR_UNROLL
  for (size_t i = 0; i < kTop; ++i) top[i] = merged[i];
}

// The kTop largest keys among 16 words of x from kFirst on, sorted. A key is twice the word: the
// sign of the upper number falls out, that of the lower one becomes the lowest bit of the upper
// key, where it only decides between equal magnitudes. (A multiply-add, not a logic instruction.)
template <size_t kFirst, size_t kTop, size_t kWords>
OSCAR_NETWORK void LargestOf16(const uint32_t (&x)[kWords], uint32_t (&top)[kTop]) {
  uint32_t sorted[16];
  OSCAR_UNROLL
  for (size_t i = 0; i < 16; ++i) sorted[i] = x[kFirst + i] * 2;
  SortDescending(sorted);
  OSCAR_UNROLL
  for (size_t i = 0; i < kTop; ++i) top[i] = sorted[i];
}

template <size_t kFirst, size_t kTop, size_t kWords>
OSCAR_NETWORK void LargestFrom(const uint32_t (&x)[kWords], uint32_t (&top)[kTop]) {
  if constexpr (kFirst < kWords) {
    uint32_t next[kTop];
    LargestOf16<kFirst>(x, next);
    KeepLargest(top, next);
    LargestFrom<kFirst + 16>(x, top);
  }
}

// The kRank-th largest of two sorted lists: either the kRank-th of one of them, or the smaller of
// the i-th of one and the (kRank - i)-th of the other.
template <size_t kRank, size_t kTop>
OSCAR_NETWORK uint32_t RankOfBoth(const uint32_t (&a)[kTop], const uint32_t (&b)[kTop]) {
  uint32_t result = PairMax(a[kRank - 1], b[kRank - 1]);
  OSCAR_UNROLL
  for (size_t i = 1; i < kRank; ++i) result = PairMax(result, PairMin(a[i - 1], b[kRank - i - 1]));
  return result;
}

template <size_t kLowest, size_t kRank, size_t kTop>
OSCAR_NETWORK uint32_t RankOfBothUpTo(const uint32_t (&a)[kTop], const uint32_t (&b)[kTop],
                                      int rank) {
  if constexpr (kRank > kLowest) {
    if (rank < static_cast<int>(kRank)) return RankOfBothUpTo<kLowest, kRank - 1>(a, b, rank);
  }
  return RankOfBoth<kRank>(a, b);
}

}  // namespace oscar

#undef OSCAR_NETWORK
#undef OSCAR_UNROLL
