// The sum over the warps of a block at the end of a piece. Device code.
//
// Every warp leaves its results in shared memory, those of four query heads at a time; then each
// lane adds up some of them over the warps of a head and writes them to the partial result.
#pragma once

#include "oscar/cuda/decode_ring.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

// Warp: the kind of warp, which knows the channels of its fragments.
template <typename Warp, typename Traits, int kDim, int kGroups, int kHeadsLog2>
class PieceSum {
  static constexpr int kThreads = 32 * Traits::kWarps;
  // Units of four numbers of a query head, (steps, half, g) of a fragment.
  static constexpr int kUnits = kDim / 4;
  static constexpr int kInfo = kGroups == 1 ? 1 : 2;  // max, sum, factor and zeros, by four
  static constexpr uint32_t kAreaBytes = Traits::kWarpResultBytes;
  static_assert(kAreaBytes == 4 * (kUnits + kInfo) * 16);
  // Warps of a head, if known.
  static constexpr int kParts = kHeadsLog2 < 0
                                    ? 0
                                    : Traits::kWarps >> (kHeadsLog2 + Traits::kColumnWarpsLog2);

 public:
  // `partial`: where the piece's result goes.
  __device__ PieceSum(const DecodeParams& p, int partial, const WarpPlace& place, uint32_t scratch)
      : p_(p), partial_(partial), place_(place), scratch_(scratch) {}

  // By all threads that compute; `scratch` is a stage.
  __device__ __forceinline__ void Run(const Warp& warp) const {
#pragma unroll
    for (int i = 0; i < Traits::kColumnTiles * Traits::kLaneQueries; ++i) {
      if (i > 0) SynchroniseThreads(kThreads);  // all have taken the last ones
      const int tile = i / Traits::kLaneQueries, c = i % Traits::kLaneQueries;
      Give(warp, tile, c);
      SynchroniseThreads(kThreads);
      Take((place_.columns + tile) * 8 + 4 * c);
    }
  }

 private:
  __device__ __forceinline__ static uint32_t Lane() { return threadIdx.x & 31; }
  // Where the unit of a query is in a warp's area: the lanes of four queries meet eight banks.
  // Units eight apart keep their distance.
  __device__ __forceinline__ static uint32_t UnitAt(uint32_t query, uint32_t unit) {
    return (query * kUnits + (unit ^ (2 * query))) * 16;
  }
  __device__ __forceinline__ static uint32_t InfoAt(uint32_t query) {
    return (4 * kUnits + query * kInfo) * 16;
  }

  __device__ __forceinline__ void Give(const Warp& warp, int tile, int c) const {
    const uint32_t area = scratch_ + static_cast<uint32_t>(place_.warp) * kAreaBytes;
    const uint32_t g = Lane() >> 2, query = Lane() & 3;
    const uint32_t first = area + UnitAt(query, g);
#pragma unroll
    for (int i = 0; i < kUnits / 8; ++i) {
      StoreShared4(first + 128 * i, warp.Unit(tile, c, i / 2, i % 2));
    }
    float sum, zeros[kGroups];
    warp.AddLanes(tile, c, sum, zeros);
    const uint32_t info = area + InfoAt(query);
    if (kGroups == 1 && g < 2) {
      StoreShared2(info + 8 * g, g == 0 ? warp.Max(tile, c) : warp.Down(), sum);
    }
    if (kGroups > 1 && g == 0) {
      StoreShared4(info, make_float4(warp.Max(tile, c), sum, warp.Down(), 0));
      StoreShared4(info + 16, make_float4(zeros[0], zeros[1 % kGroups], zeros[2 % kGroups],
                                          zeros[3 % kGroups]));
    }
  }

  template <typename Body>
  __device__ __forceinline__ void ForParts(Body body) const {
    const uint32_t step = static_cast<uint32_t>(Traits::kWarps / place_.parts);
    const uint32_t first = scratch_ + (static_cast<uint32_t>(place_.warp) % step) * kAreaBytes;
    if constexpr (kParts > 0) {
#pragma unroll
      for (uint32_t part = 0; part < kParts; ++part) body(first + part * step * kAreaBytes);
    } else {
#pragma unroll 2
      for (int part = 0; part < place_.parts; ++part) {
        body(first + static_cast<uint32_t>(part) * step * kAreaBytes);
      }
    }
  }

  // Query heads from `column` on.
  __device__ __forceinline__ void Take(int column) const {
    const int count = min(4, p_.group_size - column);
#pragma unroll 1
    for (int i = place_.part * 32 + static_cast<int>(Lane()); i < count * kUnits;
         i += place_.parts * 32) {
      const auto query = static_cast<uint32_t>(i) / kUnits,
                 unit = static_cast<uint32_t>(i) % kUnits;
      TakeUnit(column, query, unit);
    }
  }

  __device__ __forceinline__ void TakeUnit(int column, uint32_t query, uint32_t unit) const {
    float top = kNoScore;
    ForParts([&](uint32_t area) {
      top = fmaxf(top, __uint_as_float(LoadShared(area + InfoAt(query))));
    });
    float sum = 0, zeros[kGroups] = {};
    float4 x = {0, 0, 0, 0};
    ForParts([&](uint32_t area) {
      const float4 info = LoadShared4(area + InfoAt(query));
      const float4 o = LoadShared4(area + UnitAt(query, unit));
      const float weight = Exp2(info.x - top);
      sum = fmaf(weight, info.y, sum);
      const float factor = weight * info.z;
      x = {fmaf(factor, o.x, x.x), fmaf(factor, o.y, x.y), fmaf(factor, o.z, x.z),
           fmaf(factor, o.w, x.w)};
      if constexpr (kGroups == 1) {
        zeros[0] = fmaf(factor, info.w, zeros[0]);
      } else {
        const float4 z = LoadShared4(area + InfoAt(query) + 16);
        zeros[0] = fmaf(factor, z.x, zeros[0]);
        zeros[1 % kGroups] = fmaf(factor, z.y, zeros[1 % kGroups]);
        zeros[2 % kGroups] = fmaf(factor, z.z, zeros[2 % kGroups]);
        zeros[3 % kGroups] = fmaf(factor, z.w, zeros[3 % kGroups]);
      }
    });
    const int g = static_cast<int>(unit & 7), half = static_cast<int>(unit >> 3 & 1);
    const int steps = static_cast<int>(unit >> 4);
    Warp::Finish(x, zeros, steps, half);
    const int heads = Traits::kWarps / place_.parts >> Traits::kColumnWarpsLog2;
    const auto row =
        static_cast<uint32_t>((partial_ * heads + place_.head_in_block) * p_.group_size + column +
                              static_cast<int>(query));
    Warp::Store(p_.partial_o + static_cast<uint64_t>(row) * kDim, x, g, steps, half);
    if (unit == 0) reinterpret_cast<float2*>(p_.partial_sums)[row] = make_float2(top, sum);
  }

  const DecodeParams& p_;
  int partial_;
  const WarpPlace& place_;
  uint32_t scratch_;
};

}  // namespace oscar
