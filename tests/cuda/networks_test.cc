// The selection networks of the write kernel. A network of comparators sorts everything if it sorts
// all patterns of zeros and ones; both halves of a word run through it at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "oscar/core/random.h"
#include "oscar/cuda/write_networks.h"

namespace oscar {
namespace {

uint32_t Pair(uint32_t low, uint32_t high) { return low | (high << 16); }

TEST(Networks, SixteenAreSorted) {
  for (uint32_t pattern = 0; pattern < (1U << 16); ++pattern) {
    uint32_t x[16];
    for (uint32_t i = 0; i < 16; ++i) x[i] = Pair((pattern >> i) & 1U, (~pattern >> i) & 1U);
    SortDescending(x);
    const int ones = std::popcount(pattern);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(x[i], Pair(i < ones ? 1 : 0, i < 16 - ones ? 1 : 0)) << pattern;
    }
  }
}

template <size_t kTop>
void ExpectMerges() {
  for (size_t p = 0; p <= kTop; ++p) {
    for (size_t q = 0; q <= kTop; ++q) {
      uint32_t a[kTop], b[kTop];
      for (size_t i = 0; i < kTop; ++i) {
        a[i] = Pair(i < p ? 1 : 0, i < q ? 1 : 0);
        b[i] = Pair(i < q ? 1 : 0, 0);
      }
      KeepLargest(a, b);
      for (size_t i = 0; i < kTop; ++i) {
        ASSERT_EQ(a[i], Pair(i < p + q ? 1 : 0, i < q ? 1 : 0)) << kTop << " " << p << " " << q;
      }
    }
  }
}

TEST(Networks, MergesKeepTheLargest) {
  [&]<size_t... kTop>(std::index_sequence<kTop...>) { (ExpectMerges<kTop + 1>(), ...); }
  (std::make_index_sequence<24>{});
}

// What four lanes do with kWords words each, one after the other.
template <size_t kLowest, size_t kTop, size_t kWords>
uint32_t RankLargest(const std::array<std::array<uint32_t, kWords>, 4>& lanes, int rank) {
  uint32_t top[4][kTop];
  for (size_t i = 0; i < 4; ++i) {
    uint32_t x[kWords];
    std::copy(lanes[i].begin(), lanes[i].end(), x);
    LargestOf16<0>(x, top[i]);
    LargestFrom<16>(x, top[i]);
  }
  KeepLargest(top[0], top[1]);
  KeepLargest(top[2], top[3]);
  return (RankOfBothUpTo<kLowest, kTop>(top[0], top[2], rank) >> 1) & 0x7fff7fffU;
}

template <size_t kLowest, size_t kTop, size_t kWords>
void ExpectRanks(uint64_t seed) {
  Random random(seed);
  for (int trial = 0; trial < 2000; ++trial) {
    std::array<std::array<uint32_t, kWords>, 4> lanes;
    std::vector<uint32_t> low, high;
    // Few levels in every second trial, so that magnitudes repeat; signs at random.
    const uint64_t levels = trial % 2 == 0 ? 0x8000 : 1 + random.Below(12);
    for (auto& lane : lanes) {
      for (uint32_t& word : lane) {
        const auto a = static_cast<uint32_t>(random.Below(levels)),
                   b = static_cast<uint32_t>(random.Below(levels));
        low.push_back(a);
        high.push_back(b);
        word = Pair(a, b) | static_cast<uint32_t>(random.Below(4) & 1 ? 0x8000U : 0U) |
               static_cast<uint32_t>(random.Below(4) & 1 ? 0x80000000U : 0U);
      }
    }
    std::sort(low.begin(), low.end(), std::greater<>());
    std::sort(high.begin(), high.end(), std::greater<>());
    for (size_t rank = kLowest; rank <= kTop; ++rank) {
      const size_t at = rank - 1;
      const uint32_t found = RankLargest<kLowest, kTop, kWords>(lanes, static_cast<int>(rank));
      ASSERT_EQ(found, Pair(low[at], high[at])) << "rank " << rank;
    }
  }
}

TEST(Networks, RanksOfFourLanesEqualSorting) {
  ExpectRanks<2, 6, 16>(1);
  ExpectRanks<2, 6, 32>(2);
  ExpectRanks<2, 6, 64>(3);
  ExpectRanks<7, 11, 16>(4);
  ExpectRanks<7, 11, 32>(5);
  ExpectRanks<7, 11, 64>(6);
  ExpectRanks<12, 16, 16>(7);
  ExpectRanks<12, 16, 32>(8);
  ExpectRanks<12, 16, 64>(9);
}

}  // namespace
}  // namespace oscar
