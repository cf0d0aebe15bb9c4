// The warps that copy tiles into shared memory where a block has one or two KV heads: its tokens
// are small, so that the instructions and the latency of each count. Device code.
#pragma once

#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/decode_ring.cuh"
#include "oscar/cuda/decode_tile.cuh"

namespace oscar {

// Whether an instance finds out at run time that a block has one or two heads of one group. (Tiles
// of twelve warps for two heads are no whole steps of so many tokens.)
template <typename Traits, int kDim, int kHeadsLog2>
inline constexpr bool kMayBeFewHeads =
    kHeadsLog2 < 0 && Traits::kGroups == 1 && kDim <= 128 && Traits::kWarps == 16;

// One copying warp's share of a piece, 32 tokens of every step: lane l holds the slot number of
// token l and copies its (scale, zero), and one 16-byte chunk of every few tokens' codes, K and V.
template <typename Traits, int kDim, int kHeadsLog2>
class FewHeadsCopier {
  static constexpr int kStep = 32 * kCopyWarps;  // tokens
  static constexpr int kTileTokens = (Traits::kWarps * kQuantisedWarpTokens) >>
                                     (kHeadsLog2 + Traits::kColumnWarpsLog2);
  static constexpr int kSteps = kTileTokens / kStep;  // of a tile
  static constexpr int kChunksLog2 = kHeadsLog2 + (kDim == 64 ? 0 : 1);
  static constexpr int kTurns = 1 << kChunksLog2, kPerTurn = 32 / kTurns;
  static_assert(Traits::kGroups == 1 && kDim <= 128 && kHeadsLog2 <= 1);
  static_assert(kTileTokens % kStep == 0);
  // Chunks are exchanged by the token within a turn alone.
  static_assert((kPerTurn >> (3 - kChunksLog2)) % (1 << kChunksLog2) == 0);

 public:
  __device__ FewHeadsCopier(const DecodeParams& p, const PlanPiece& piece, int warp, int lane)
      : left_(piece.tokens),
        wide_scales_(p.scale_kind == ScaleKind::kF32),
        token_(32 * warp + lane),
        last_(piece.tokens - 1),
        code_lane_(lane / kTurns),
        slot_bytes_(1U << p.quantised_slot_log2),
        code_stride_(p.code_stride),
        scale_stride_(p.scale_stride) {
    const int chunk = lane % kTurns, code_token = 32 * warp + code_lane_;
    const int64_t codes_at =
        (static_cast<int64_t>(piece.head_block) << kHeadsLog2) * (kDim / 4) + chunk * 16;
    const int64_t scales_at = static_cast<int64_t>(piece.head_block) << ScaleRowLog2<kHeadsLog2>(p);
    k_codes_ = p.k_codes + codes_at;
    v_codes_ = p.v_codes + codes_at;
    k_scales_ = p.k_scales + scales_at;
    v_scales_ = p.v_scales + scales_at;
    list_ = p.quantised_slots + (piece.slot_begin << p.quantised_slot_log2);
    code_target_ = static_cast<uint32_t>(CodeOffset(code_token, chunk, kChunksLog2));
    scale_target_ = static_cast<uint32_t>(2 * Traits::kCodeBytes + (token_ << ScaleRowLog2<kHeadsLog2>(p)));
    codes_left_ = left_ - code_token;
    scales_left_ = left_ - token_;
    Pin(k_codes_);
    Pin(v_codes_);
    Pin(k_scales_);
    Pin(v_scales_);
    Pin(list_);
    Pin(code_target_);
    Pin(scale_target_);
    Fetch(token_);
  }

  // Copies the piece's tiles.
  __device__ __forceinline__ void Run(const DecodeParams& p, Rings<Traits>& rings) {
    int early = EarlyTiles(p, left_ / kTileTokens);
#pragma unroll 1
    for (; left_ > 0; --early) {
      // Every slot number is dealt out before those of the next tile are read: their registers are
      // free then, and nothing waits for the reads before the next turn.
      Slots slots[kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) slots[step] = Share(next_[step]);
      if (early == 0) WaitForPredecessors();
      rings.quantised.WaitEmpty();
      Fetch(token_ + kTileTokens);
      CopyTile(rings.quantised.address(), slots);
      rings.quantised.SignalFull();
      rings.quantised.Advance();
      left_ -= kTileTokens;
      codes_left_ -= kTileTokens;
      scales_left_ -= kTileTokens;
      token_ += kTileTokens;
    }
  }

 private:
  // The slot numbers of a lane's copies of one step.
  struct Slots {
    uint32_t own, codes[kTurns];
  };

  // Reads the slot numbers of a tile, `token` being the lane's first; behind the piece's last
  // token, its own.
  __device__ __forceinline__ void Fetch(int token) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const auto index = static_cast<uint32_t>(min(token + i * kStep, last_));
      next_[i] = __ldg(reinterpret_cast<const uint32_t*>(AddressOf(list_, index, slot_bytes_)));
    }
  }

  // Deals out what each lane holds of its own token.
  __device__ __forceinline__ Slots Share(uint32_t slot) const {
    Slots slots;
    slots.own = slot;
    PinLane(slots.own);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      slots.codes[i] = kTurns == 1 ? slots.own : __shfl_sync(~0U, slot, code_lane_ + i * kPerTurn);
    }
    return slots;
  }

  __device__ __forceinline__ void CopyTile(uint32_t stage, const Slots (&slots)[kSteps]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int first = step * kStep + i * kPerTurn;
        const uint32_t to =
            stage + code_target_ + static_cast<uint32_t>((first << kChunksLog2) * 16);
        const uint32_t slot = slots[step].codes[i];
        const bool wanted = codes_left_ > first;
        CopyOnce<16>(to, AddressOf(k_codes_, slot, code_stride_), wanted);
        CopyOnce<16>(to + Traits::kCodeBytes, AddressOf(v_codes_, slot, code_stride_), wanted);
      }
      if (wide_scales_) {
        CopyScales<8 << kHeadsLog2>(stage + scale_target_, step * kStep, slots[step].own);
      } else {
        CopyScales<4 << kHeadsLog2>(stage + scale_target_, step * kStep, slots[step].own);
      }
    }
  }

  // `first`: the step's first token of a tile, whose (scale, zero) the lane would copy to `to`.
  template <int kBytes>
  __device__ __forceinline__ void CopyScales(uint32_t to, int first, uint32_t slot) const {
    const bool wanted = scales_left_ > first;
    const uint32_t at = to + static_cast<uint32_t>(first * kBytes);
    CopyOnce<kBytes>(at, AddressOf(k_scales_, slot, scale_stride_), wanted);
    CopyOnce<kBytes>(at + Traits::kScaleBytes, AddressOf(v_scales_, slot, scale_stride_), wanted);
  }

  const char *k_codes_, *v_codes_, *k_scales_, *v_scales_;
  const char* list_;  // the piece's slots
  // Tokens from the tile's first on, from the lane's first one whose codes it copies, and from the
  // lane's own.
  int left_, codes_left_, scales_left_;
  bool wide_scales_;
  int token_, last_;  // the lane's own of the tile, and the last one, of the piece
  int code_lane_;     // that holds the slot number of the first of the codes of a turn
  uint32_t code_target_, scale_target_;
  uint32_t slot_bytes_, code_stride_, scale_stride_;
  uint32_t next_[kSteps];  // slot numbers of the lane's tokens of the next tile
};

}  // namespace oscar
