#include "gpu/issue_limits.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "oscar/cuda/cuda_error.h"
#include "oscar/cuda/device.h"
#include "oscar/cuda/shared_memory.cuh"
#include "oscar/cuda/write_wgmma.cuh"

namespace oscar::test {
namespace {

constexpr int kPasses = 2000;
constexpr int kLogic = 160, kMultiplies = 32, kArithmetic = 64;
constexpr int kChains = 8;  // of instructions that depend on one another

// kApart: half of the warps do all multiplies. kGroups: four warps multiply together, 16 columns
// at a time, with the other operand in shared memory.
enum class Way { kMixed, kApart, kGroups };

struct Work {
  uint32_t bits[kChains];
  float sums[kChains][4];
  uint32_t codes[4];
  float numbers[kChains];

  __device__ void Cut(int count, uint32_t mask) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;"
                   : "+r"(bits[i % kChains])
                   : "r"(mask), "r"(codes[0]));
    }
  }
  __device__ void Add(int count) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      asm volatile("fma.rn.f32 %0, %0, %1, %2;"
                   : "+f"(numbers[i % kChains])
                   : "f"(numbers[kChains - 1]), "f"(numbers[kChains - 2]));
    }
  }
  __device__ void Multiply(int count) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float(&d)[4] = sums[i % kChains];
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3]), "r"(codes[0]),
            "r"(codes[1]));
    }
  }
  // The products of as many multiplies of warps, by half as many of warpgroups.
  __device__ void MultiplyInGroups(int count, uint64_t other) {
    BeginMultiplies();
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      float(&c)[4] = sums[2 * i % kChains];
      float(&d)[4] = sums[(2 * i + 1) % kChains];
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
          "{%8, %9, %10, %11}, %12, 1, 1, 1, 1;"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
            "+f"(d[3])
          : "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3]), "l"(other));
    }
    EndMultiplies();
  }
};

// A matrix [16, 16] of half precision at a multiple of 1024 bytes of shared memory, not swizzled.
__device__ uint64_t PlainDescriptor(const void* matrix) {
  constexpr uint64_t kEightChannels = 128 / 16, kEightColumns = 256 / 16;
  return (kEightColumns << 32) | (kEightChannels << 16) | (SharedAddress(matrix) >> 4);
}

// kCut, kMultiply, kAdd: instructions of a pass.
template <int kCut, int kMultiply, int kAdd, Way kWay, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) Passes(uint32_t seed, long long* cycles) {
  __shared__ __align__(1024) uint32_t other[128];
  if (threadIdx.x < 128) other[threadIdx.x] = 0;
  FenceForMultiplies();
  Work work;
  for (int i = 0; i < kChains; ++i) {
    work.bits[i] = threadIdx.x * seed + static_cast<uint32_t>(i);
    for (float& x : work.sums[i]) x = 0;
    work.numbers[i] = static_cast<float>(seed);
  }
  for (uint32_t& x : work.codes) x = seed;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    if constexpr (kWay == Way::kGroups) {
      work.MultiplyInGroups(kMultiply, PlainDescriptor(other));
      work.Cut(kCut, seed);
      work.Add(kAdd);
      WaitMultiplies();
    } else if constexpr (kWay == Way::kMixed) {
      work.Multiply(kMultiply);
      work.Cut(kCut, seed);
      work.Add(kAdd);
    } else if (warp < kWarps / 2) {
      work.Multiply(2 * kMultiply);
    } else {
      work.Cut(2 * kCut, seed);
      work.Add(2 * kAdd);
    }
  }
  if ((threadIdx.x & 31) == 0 && blockIdx.x == 0) cycles[warp] = clock64() - start;
  float sum = 0;
  for (int i = 0; i < kChains; ++i) {
    sum += static_cast<float>(work.bits[i]) + work.numbers[i];
    for (const float x : work.sums[i]) sum += x;
  }
  if (sum == 1.5F) cycles[0] = 0;  // so that nothing is left out
}

template <int kCut, int kMultiply, int kAdd, Way kWay = Way::kMixed, int kWarps = 16>
double Measure(const DeviceBuffer& buffer) {
  const int multiprocessors = QueryDevice(CurrentDevice()).multiprocessors;
  for (int i = 0; i < 2; ++i) {  // the first one warms up
    Passes<kCut, kMultiply, kAdd, kWay, kWarps>
        <<<multiprocessors, 32 * kWarps>>>(3, buffer.As<long long>());
    CheckCuda(cudaGetLastError(), "launch of a timing of instructions");
  }
  CheckCuda(cudaDeviceSynchronize(), "timing of instructions");
  long long cycles[kWarps];
  buffer.Download(cycles, sizeof(cycles));
  const long long longest = *std::max_element(cycles, cycles + kWarps);
  return static_cast<double>(longest) / kPasses / (kWarps / 4.0);
}

}  // namespace

std::vector<IssueTime> MeasureIssue() {
  constexpr int64_t kMostWarps = 16;
  const DeviceBuffer cycles(kMostWarps * static_cast<int64_t>(sizeof(long long)));
  return {{"issue logic", Measure<kLogic, 0, 0>(cycles)},
          {"issue multiplies", Measure<0, kMultiplies, 0>(cycles)},
          {"issue arithmetic", Measure<0, 0, kArithmetic>(cycles)},
          {"issue logic and arithmetic", Measure<kLogic, 0, kArithmetic>(cycles)},
          {"issue logic and multiplies", Measure<kLogic, kMultiplies, 0>(cycles)},
          {"issue multiplies and arithmetic", Measure<0, kMultiplies, kArithmetic>(cycles)},
          {"issue all", Measure<kLogic, kMultiplies, kArithmetic>(cycles)},
          {"issue all, multiplies in warps of their own",
           Measure<kLogic, kMultiplies, kArithmetic, Way::kApart>(cycles)},
          {"issue multiplies of warpgroups", Measure<0, kMultiplies, 0, Way::kGroups>(cycles)},
          {"issue logic and multiplies of warpgroups",
           Measure<kLogic, kMultiplies, 0, Way::kGroups>(cycles)},
          {"issue all, multiplies of warpgroups",
           Measure<kLogic, kMultiplies, kArithmetic, Way::kGroups>(cycles)},
          {"issue tile of sixteen heads", Measure<155, 64, 190, Way::kMixed, 12>(cycles)}};
}

}  // namespace oscar::test
