// Caches of random content on the device, with the slot lists of requests, for benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/bench/bench_device.h"
#include "oscar/cuda/decode.h"

namespace oscar {

// A device copy of host data.
DeviceBuffer Uploaded(const void* data, int64_t bytes);
// `count` normal bf16 numbers.
std::vector<BFloat16> NormalRows(int64_t count, uint64_t seed, double sd);
// Slots of `count` tokens (a multiple of 8): 8-slot pages, in random order or in sequence.
std::vector<int32_t> PageSlots(int64_t count, bool shuffled, uint64_t seed);

// How many copies of `bytes` are taken in turn so that none is still in the L2 cache when it comes
// up again: the bytes between two uses are at least eight times the cache.
int64_t CopiesBeyondL2(int64_t bytes, int64_t l2_bytes);

// Both tiers of one layer's cache at one shape, holding `copies` of a case's tokens.
class CachePool {
 public:
  // Throws Error(kMemory) when it does not fit.
  CachePool(const DecodeCase& c, int64_t copies);

  // Whether this pool can serve `c` with as many copies.
  bool Serves(const DecodeCase& c, int64_t copies) const;
  // Slot lists in another order; contents stay.
  void Order(bool shuffled);
  // Inputs of launch i, which reads copy i of the case's tokens. Queries are missing.
  DecodeInputs Inputs(const DecodeCase& c, int64_t i) const;
  // The memory of the bf16 tier taken as contiguous keys and values of copy i of a BF16 case.
  RowCache Contiguous(const DecodeCase& c, int64_t i) const;

 private:
  struct Tier {
    int64_t slots = 0;
    DeviceBuffer k, v, k_scales, v_scales, list;
  };
  CacheShape shape_;
  bool shuffled_ = false;
  Tier quantised_, rows_;
};

}  // namespace oscar
