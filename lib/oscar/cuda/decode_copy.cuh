// The warps that copy tiles into shared memory. Device code.
#pragma once

#include "oscar/cuda/decode_copy_few.cuh"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/decode_ring.cuh"
#include "oscar/cuda/decode_tile.cuh"

namespace oscar {

// The slot numbers of a piece, kPerWarp tokens per copying warp and step: one a lane, for as many
// steps as the lanes allow, and those of the following steps under way.
template <int kPerWarp>
class SlotReader {
  static constexpr int kHeld = 32 / kPerWarp * kPerWarp;  // slot numbers of a warp

 public:
  __device__ SlotReader(const char* list, const PlanPiece& piece, int log2_bytes, int warp,
                        int lane) {
    const int token = lane / kPerWarp * kPerWarp * kCopyWarps + warp * kPerWarp + lane % kPerWarp;
    list_ = list + (piece.slot_begin << log2_bytes);
    token_ = token;
    last_ = piece.tokens - 1;
    next_ = Fetch(log2_bytes);
    Next(log2_bytes);
  }
  // The slot of the warp's token `own` of the current step; behind its last one some other's. The
  // low word of a slot number: no pool has 2^31 slots, whatever the width of its numbers.
  __device__ __forceinline__ uint32_t Slot(int own) const {
    return __shfl_sync(~0U, now_, first_ + own);
  }
  __device__ __forceinline__ void Advance(int log2_bytes) {
    first_ += kPerWarp;
    if (first_ < kHeld) return;
    first_ = 0;
    Next(log2_bytes);
  }

 private:
  // Through a shuffle, so that nothing but the next call waits for what is read: a move would come
  // after the read and wait for it.
  __device__ __forceinline__ void Next(int log2_bytes) {
    now_ = next_;
    PinLane(now_);
    next_ = Fetch(log2_bytes);
  }
  __device__ __forceinline__ uint32_t Fetch(int log2_bytes) {
    // Behind the piece's last token, its own.
    const auto index = static_cast<uint32_t>(min(token_, last_));
    token_ += kHeld * kCopyWarps;
    return __ldg(reinterpret_cast<const uint32_t*>(AddressOf(list_, index, 1U << log2_bytes)));
  }
  const char* list_;  // of the piece
  int token_, last_;  // the lane's next, and the last one
  int first_ = 0;
  uint32_t now_, next_;
};

// One copying warp's share of a step of quantised tokens. A lane copies the same 16-byte chunk of
// every few tokens' codes, K and V, and one unit of their (scale, zero).
template <typename Traits, int kDim, int kHeadsLog2>
class CodeCopier {
  static constexpr int kStep = Traits::kQuantisedStep;
  static constexpr int kTokens = kStep / kCopyWarps;
  static_assert(kTokens % 8 == 0, "the exchange of chunks repeats every 8 tokens at the latest");
  static constexpr int kChunksLog2 = kDim == 64 ? 0 : (kDim == 128 ? 1 : 2);
  static constexpr bool kKnown = kHeadsLog2 >= 0;
  // Two heads of one group in 16 bits are less than a unit of 16 bytes.
  static constexpr bool kFullUnits = kHeadsLog2 >= 2 || (kKnown && Traits::kGroups > 1);
  // A token's (scale, zero) are two or four units.
  static constexpr bool kWide = kHeadsLog2 == 3 && Traits::kGroups == 1;

 public:
  // `token`: the warp's first in a tile.
  __device__ CodeCopier(const DecodeParams& p, const PlanPiece& piece, int token, int lane)
      : p_(p) {
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int chunk = lane & ((1 << ChunksLog2()) - 1);
    const int64_t codes_at = static_cast<int64_t>(piece.head_block << heads_log2) * (kDim / 4);
    k_codes_ = p.k_codes + codes_at + chunk * 16;
    v_codes_ = p.v_codes + codes_at + chunk * 16;
    Pin(k_codes_);
    Pin(v_codes_);
    const int unit = lane & ((1 << UnitsLog2()) - 1), own = lane >> UnitsLog2();
    k_scales_ = p.k_scales +
                (static_cast<int64_t>(piece.head_block) << ScaleRowLog2<kHeadsLog2>(p)) +
                (unit << UnitLog2());
    code_target_ =
        static_cast<uint32_t>(CodeOffset(token + (lane >> ChunksLog2()), chunk, ChunksLog2()));
    const int row_log2 = ScaleRowLog2<kHeadsLog2>(p);
    const int place =
        SwizzlesScales<kHeadsLog2>(p) ? unit ^ ScaleSwizzle(row_log2, token + own) : unit;
    scale_target_ = static_cast<uint32_t>(2 * Traits::kCodeBytes + ((token + own) << row_log2) +
                                          (place << UnitLog2()));
  }

  // The step's tokens of a tile at `stage`, `step` steps into it; `left` (any number) of the warp's
  // tokens exist.
  __device__ __forceinline__ void Copy(uint32_t stage, int step, int lane,
                                       const SlotReader<kTokens>& slots, int left) const {
    const int chunks_log2 = ChunksLog2();
    const uint32_t codes =
        stage + code_target_ + static_cast<uint32_t>((step * kStep << chunks_log2) * 16);
    const int per_turn = 32 >> chunks_log2;
    uint32_t first = static_cast<uint32_t>(lane >> chunks_log2);
    Pin(first);
    const auto copy = [&](int i, uint32_t slot) {
      const int own = static_cast<int>(first) + i * per_turn;
      // Exchanged chunks: those of `first`, and what the turn adds in bits of its own.
      const int shift = chunks_log2 < 3 ? 3 - chunks_log2 : 0;
      const int mask = chunks_log2 < 3 ? (1 << chunks_log2) - 1 : 7;
      const uint32_t to = (codes ^ static_cast<uint32_t>(((i * per_turn >> shift) & mask) * 16)) +
                          static_cast<uint32_t>((i * per_turn << chunks_log2) * 16);
      if (!kKnown && own >= kTokens) return;
      CopyOnce<16>(to, AddressOf(k_codes_, slot, p_.code_stride), own < left);
      CopyOnce<16>(to + Traits::kCodeBytes, AddressOf(v_codes_, slot, p_.code_stride), own < left);
    };
    if constexpr (kKnown) {
      // All slot numbers first: their latencies overlap.
      constexpr int kTurns = (kTokens << (kHeadsLog2 + kChunksLog2)) / 32;
      uint32_t slot[kTurns];
#pragma unroll
      for (int i = 0; i < kTurns; ++i) slot[i] = slots.Slot(static_cast<int>(first) + i * per_turn);
#pragma unroll
      for (int i = 0; i < kTurns; ++i) copy(i, slot[i]);
    } else {
#pragma unroll 1
      for (int i = 0; i * per_turn < kTokens; ++i) {
        copy(i, slots.Slot(static_cast<int>(first) + i * per_turn));
      }
    }
    const int units_log2 = UnitsLog2();
    const uint32_t scales =
        stage + scale_target_ + static_cast<uint32_t>(step * kStep << ScaleRowLog2<kHeadsLog2>(p_));
    const auto turn = [&](int i, int at) {
      const int own = i + (lane >> units_log2);
      const uint32_t slot = slots.Slot(own);
      if (!kWide && own >= kTokens) return;
      const uint32_t to = scales + static_cast<uint32_t>(at);
      const char* const source = AddressOf(k_scales_, slot, p_.scale_stride);
      CopyUnit(to, source, own < left);
      CopyUnit(to + Traits::kScaleBytes, source + (p_.v_scales - p_.k_scales), own < left);
    };
    if constexpr (kKnown && Traits::kGroups == 1) {
      turn(0, 0);
      // Four or two units of 16 bytes to a token, so the distance of some tokens is a constant: as
      // a uniform register in the address, ptxas 13.0 encodes it wrongly beside the hint of
      // CopyOnce.
      if (kWide && units_log2 == 2) turn(8, 8 * 4 * 16);
      if (kTokens > 16 && !kWide && units_log2 == 1) turn(16, 16 * 2 * 16);
    } else {
#pragma unroll 1
      for (int i = 0; i < kTokens; i += 32 >> units_log2) {
        turn(i, i << ScaleRowLog2<kHeadsLog2>(p_));
      }
    }
  }

 private:
  __device__ __forceinline__ int ChunksLog2() const {
    return HeadsLog2<kHeadsLog2>(p_) + kChunksLog2;
  }
  __device__ __forceinline__ int UnitLog2() const {
    return kFullUnits ? 4 : min(ScaleRowLog2<kHeadsLog2>(p_), 4);
  }
  __device__ __forceinline__ int UnitsLog2() const {
    return ScaleRowLog2<kHeadsLog2>(p_) - UnitLog2();
  }
  __device__ __forceinline__ void CopyUnit(uint32_t to, const char* from, bool wanted) const {
    if (UnitLog2() == 4) {
      CopyOnce<16>(to, from, wanted);
    } else if (UnitLog2() == 3) {
      CopyOnce<8>(to, from, wanted);
    } else {
      CopyOnce<4>(to, from, wanted);
    }
  }

  const DecodeParams& p_;
  const char *k_codes_, *v_codes_, *k_scales_;
  uint32_t code_target_, scale_target_;
};

// Copies the tiles of a piece of quantised tokens.
template <typename Traits, int kDim, int kHeadsLog2>
__device__ __forceinline__ void CopyQuantisedTiles(const DecodeParams& p, const PlanPiece& piece,
                                                   int warp, int lane, Rings<Traits>& rings) {
  constexpr int kStep = Traits::kQuantisedStep;
  constexpr int kTokens = kStep / kCopyWarps;
  SlotReader<kTokens> slots(p.quantised_slots, piece, p.quantised_slot_log2, warp, lane);
  const CodeCopier<Traits, kDim, kHeadsLog2> copier(p, piece, kTokens * warp, lane);
  const int steps = (Traits::kWarps * kQuantisedWarpTokens / kStep) >>
                    (HeadsLog2<kHeadsLog2>(p) + Traits::kColumnWarpsLog2);
  const int tile_tokens = steps * kStep;
  const int end = -kTokens * warp;  // where `left` says that nothing of the piece is left
  int left = piece.tokens + end;
  // What may be fetched early, then the rest.
  int until = max(left - EarlyTiles(p, piece.tokens / tile_tokens) * tile_tokens, end);
#pragma unroll 1
  for (;; until = end) {
#pragma unroll 1
    while (left > until) {
      rings.quantised.WaitEmpty();
      const uint32_t stage = rings.quantised.address();
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        copier.Copy(stage, step, lane, slots, left);
        slots.Advance(p.quantised_slot_log2);
        left -= kStep;
      }
      rings.quantised.SignalFull();
      rings.quantised.Advance();
    }
    if (left <= end) break;
    WaitForPredecessors();
  }
}

template <typename Traits, int kDim, int kHeadsLog2>
__device__ __forceinline__ void CopyQuantisedPiece(const DecodeParams& p, const PlanPiece& piece,
                                                   int warp, int lane, Rings<Traits>& rings) {
  if constexpr (kMayBeFewHeads<Traits, kDim, kHeadsLog2>) {
    if (p.heads_log2 == 0) {
      FewHeadsCopier<Traits, kDim, 0>(p, piece, warp, lane).Run(p, rings);
    } else if (p.heads_log2 == 1) {
      FewHeadsCopier<Traits, kDim, 1>(p, piece, warp, lane).Run(p, rings);
    } else {
      CopyQuantisedTiles<Traits, kDim, kHeadsLog2>(p, piece, warp, lane, rings);
    }
  } else {
    CopyQuantisedTiles<Traits, kDim, kHeadsLog2>(p, piece, warp, lane, rings);
  }
  // A stage for the results of the piece's warps.
  rings.quantised.WaitEmpty();
  rings.quantised.SignalFull();
  rings.quantised.Advance();
}

}  // namespace oscar
