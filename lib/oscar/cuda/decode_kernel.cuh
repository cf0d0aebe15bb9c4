// The kernel of decode attention. Device code.
//
// A block works through its pieces of the plan: four warps copy tiles into a ring of stages, the
// others compute; both sides wait for one another only at the ring.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/decode_copy_rows.cuh"
#include "oscar/cuda/decode_launch.h"
#include "oscar/cuda/decode_piece_sum.cuh"
#include "oscar/cuda/decode_quantised_warp.cuh"
#include "oscar/cuda/decode_rows_warp.cuh"
#include "oscar/cuda/overlap_launch.cuh"

namespace oscar {

// A piece of the plan, read anew at every call: kept in registers, it would crowd out the loop over
// tiles.
__device__ __forceinline__ PlanPiece ReadPiece(const PlanPiece* at) {
  PlanPiece piece;
  int tier;
  uint64_t counts;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(piece.slot_begin), "=l"(counts) : "l"(at));
  piece.tokens = static_cast<int32_t>(counts);
  piece.request = static_cast<int32_t>(counts >> 32);
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4 + 16];"
               : "=r"(piece.head_block), "=r"(tier), "=r"(piece.partial), "=r"(piece.following)
               : "l"(at));
  piece.tier = static_cast<Tier>(tier);
  return piece;
}

// A number of the plan, read where this stands.
__device__ __forceinline__ int ReadEarly(const int32_t* at) {
  int x;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(at));
  return x;
}

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct DecodeBlock {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr int kComputing = 32 * Traits::kWarps;

  const DecodeParams& p;
  Rings<Traits> rings;

  // Calls body(at), which returns how the piece ends, for the block's pieces of the plan.
  // `following`: the first one's.
  template <typename Body>
  __device__ __forceinline__ void ForPieces(int following, Body body) {
    uint32_t at = blockIdx.x;
#pragma unroll 1
    while (following >= 0) {
      const PieceEnd end = body(at);
      following = end.following - 1;
      at = static_cast<uint32_t>(p.blocks + end.partial + 1);
    }
  }

  __device__ void Copy(int following) {
    Tier last = Tier::kQuantised;
    ForPieces(following, [&](uint32_t at) {
      uint32_t thread = threadIdx.x;
      // Where the code has many variants: what follows is cheaper to work out again than to keep.
      if constexpr (kMayBeFewHeads<Traits, kDim, kHeadsLog2>) Pin(thread);
      const int warp = (static_cast<int>(thread) >> 5) - Traits::kWarps;
      const int lane = static_cast<int>(thread) & 31;
      const PlanPiece piece = ReadPiece(p.pieces + at);
      const PieceEnd end = {piece.following, piece.partial};
      if (piece.tokens == 0) return end;
      // The tiers share the memory of their stages.
      if (piece.tier != last) rings.WaitAllEmpty(last);
      last = piece.tier;
      if (piece.tier == Tier::kRows) {
        CopyRowsPiece<Traits, kDim, kHeadsLog2>(p, piece, warp, lane, rings);
      } else {
        CopyQuantisedPiece<Traits, kDim, kHeadsLog2>(p, piece, warp, lane, rings);
      }
      return end;
    });
    WaitForPredecessors();
  }

  __device__ __forceinline__ WarpPlace Place() const {
    return WarpPlace(Traits::kWarps, HeadsLog2<kHeadsLog2>(p), Traits::kColumnWarpsLog2);
  }

  // Adds a piece's warps up and writes its partial result.
  template <typename Warp, typename TierRing>
  __device__ __forceinline__ void Leave(int partial, TierRing& ring, const Warp& warp) {
    const WarpPlace place = Place();
    ring.WaitFull();
    PieceSum<Warp, Traits, kDim, kGroups, kHeadsLog2>(p, partial, place, ring.address()).Run(warp);
#ifdef OSCAR_RACECHECK
    // It reports the last reads against copies of the other tier, which wait for SignalEmpty too.
    SynchroniseThreads(kComputing);
#endif
    ring.SignalEmpty();
    ring.Advance();
  }

  __device__ __forceinline__ PieceEnd Quantised(const PlanPiece& piece) {
    using Warp = QuantisedWarp<kDim, kCols, kGroups, kHeadsLog2>;
    rings.Keep({piece.following, piece.partial});
    const WarpPlace place = Place();
    Warp warp(p, piece, place, rings.Beside());
    const int tile_tokens = place.parts * kQuantisedWarpTokens;
    int left = piece.tokens;
    for (;;) {
      const int stop = max(left - kCentreTiles * tile_tokens, 0);
      do {
        rings.quantised.WaitFull();
        warp.Tile(p, rings.quantised.address(), left, tile_tokens);
        rings.quantised.SignalEmpty();
        rings.quantised.Advance();
        left -= tile_tokens;
      } while (left > stop);
      if (left <= 0) break;
      warp.Centre();
    }
    const PieceEnd end = rings.template TakeBack<true>();
    Leave(end.partial, rings.quantised, warp);
    return end;
  }

  __device__ __forceinline__ PieceEnd Rows(const PlanPiece& piece) {
    using Warp = RowWarp<kDim, kCols, kGroups, kHeadsLog2>;
    rings.Keep({piece.following, piece.partial});
    const WarpPlace place = Place();
    Warp warp(p, piece, place);
    int left = piece.tokens - place.part * kRowWarpTokens;
    const int last = -place.part * kRowWarpTokens;
    const int tile_tokens = place.parts * kRowWarpTokens;
    while (left > last) {
      rings.rows.WaitFull();
      warp.Scores(rings.rows.address(), left);
      rings.rows.SignalEmpty();
      rings.rows.Advance();
      rings.rows.WaitFull();
      warp.AddValues(rings.rows.address());
      rings.rows.SignalEmpty();
      rings.rows.Advance();
      left -= tile_tokens;
    }
    const PieceEnd end = rings.template TakeBack<false>();
    Leave(end.partial, rings.rows, warp);
    return end;
  }

  // Has the lines of a piece's queries fetched into the L2 cache, where they are also written: there
  // is no harm in asking for them early.
  __device__ __forceinline__ void FetchQueries(const PlanPiece& piece) const {
    constexpr int kLine = 128 / sizeof(uint16_t);
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int numbers = (p.group_size << heads_log2) * kDim;
    const int head_blocks = p.kv_heads >> heads_log2;
    const uint16_t* const q =
        p.q + (static_cast<int64_t>(piece.request) * head_blocks + piece.head_block) * numbers;
    for (int i = static_cast<int>(threadIdx.x) * kLine; i < numbers; i += kComputing * kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q + i));
    }
  }

  __device__ void Compute(int following) {
    if (following >= 0) FetchQueries(ReadPiece(p.pieces + blockIdx.x));
    ForPieces(following, [&](uint32_t at) {
      const PlanPiece piece = ReadPiece(p.pieces + at);
      if (piece.tokens == 0) return PieceEnd{piece.following, piece.partial};
      if (piece.tier == Tier::kRows) return Rows(piece);
      return Quantised(piece);
    });
  }
};

// The plan and the slot lists are read before the kernels launched earlier are waited for, which is
// when a piece's queries are loaded: a kernel right before this one must not write them. kHeadsLog2:
// KV heads per block, or half as many if the plan says so (kMayHalveHeads); -1 where only known at
// run time.
template <int kDim, int kCols, int kGroups, int kHeadsLog2>
__global__ void __launch_bounds__((DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>::kThreads), 1)
    DecodeKernel(const __grid_constant__ DecodeParams p) {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  extern __shared__ __align__(1024) char shared[];
  ReleaseSuccessors();
  // On their way while the barriers are set up; what comes of the first piece then is near.
  const int heads = ReadEarly(&p.plan->heads_log2);
  const int following = ReadEarly(&p.pieces[blockIdx.x].following);
  Rings<Traits>(shared).Init();
  __syncthreads();
  const auto run = [&](int heads, auto part) {
    if constexpr (Traits::kMayHalveHeads) {
      if (heads == kHeadsLog2) {
        part(DecodeBlock<kDim, kCols, kGroups, kHeadsLog2>{p, Rings<Traits>(shared)});
        return;
      }
      using Halved = DecodeBlock<kDim, kCols, kGroups, kHeadsLog2 - 1>;
      part(Halved{p, Rings<typename Halved::Traits>(shared)});
    } else {
      part(DecodeBlock<kDim, kCols, kGroups, kHeadsLog2>{p, Rings<Traits>(shared)});
    }
  };
  if (threadIdx.x < 32 * Traits::kWarps) {
    GrowRegisters<Traits::kComputeRegisters>();
    run(heads, [&](auto block) { block.Compute(following); });
    return;
  }
  ShrinkRegisters<Traits::kCopyRegisters>();
  run(heads, [&](auto block) { block.Copy(following); });
}

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
cudaError_t LaunchInstance(const DecodeParams& params, cudaStream_t stream) {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  const auto kernel = DecodeKernel<kDim, kCols, kGroups, kHeadsLog2>;
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (status != cudaSuccess) return status;
  return LaunchOverlapping(kernel, params.blocks, Traits::kThreads, Traits::kSharedBytes, stream,
                           params);
}

template <int kDim, int kCols, int kGroups>
cudaError_t LaunchHeads(const DecodeParams& params, cudaStream_t stream) {
  constexpr int kMost = MaxHeadsLog2(kDim, kGroups, kCols);
  constexpr int kLeast = kMost - (MayHalveHeads(kDim, kGroups, kCols, kMost) ? 1 : 0);
  return params.heads_log2 >= kLeast ? LaunchInstance<kDim, kCols, kGroups, kMost>(params, stream)
                                     : LaunchInstance<kDim, kCols, kGroups, -1>(params, stream);
}

template <int kDim, int kCols>
cudaError_t LaunchGroups(const DecodeParams& params, cudaStream_t stream) {
  return params.groups > 1 ? LaunchHeads<kDim, kCols, 4>(params, stream)
                           : LaunchHeads<kDim, kCols, 1>(params, stream);
}

template <int kDim>
cudaError_t LaunchDim(const DecodeParams& params, cudaStream_t stream) {
  return params.group_size <= 4   ? LaunchGroups<kDim, 4>(params, stream)
         : params.group_size <= 8 ? LaunchGroups<kDim, 8>(params, stream)
                                  : LaunchGroups<kDim, 16>(params, stream);
}

}  // namespace oscar
