// The warps that copy tiles of bf16 rows into shared memory. Device code.
#pragma once

#include "oscar/cuda/decode_copy.cuh"

namespace oscar {

// One copying warp's share of a step of bf16 rows, keys or values. A lane copies the same chunk of
// every head's row, of one token after the other, or of some at once where the heads are few.
template <typename Traits, int kDim, int kHeadsLog2>
class RowCopier {
  static constexpr int kTokens = Traits::kRowStep / kCopyWarps;
  static constexpr int kHeadChunksLog2 = kDim == 64 ? 3 : (kDim == 128 ? 4 : 5);

 public:
  __device__ __forceinline__ static void Copy(const DecodeParams& p, uint32_t stage,
                                              const char* source, int token, int lane,
                                              const SlotReader<kTokens>& slots, int left) {
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int chunks_log2 = heads_log2 + kHeadChunksLog2;
    const int lanes_log2 = min(chunks_log2, 5);  // lanes of a token
    const int chunk = lane & ((1 << lanes_log2) - 1);
    const int head_chunk = chunk & ((1 << kHeadChunksLog2) - 1);
    const int head = chunk >> kHeadChunksLog2;
#pragma unroll 1
    for (int i = 0; i < kTokens; i += 32 >> lanes_log2) {
      const int own = i + (lane >> lanes_log2);
      const char* from = AddressOf(source + chunk * 16, slots.Slot(own), p.row_stride);
      const int at = token + own;
      uint32_t to =
          stage + static_cast<uint32_t>((((at >> 4) << heads_log2) + head) * Traits::kWarpRowBytes +
                                        (at & 15) * (kDim * 2) + (head_chunk ^ (at & 7)) * 16);
#pragma unroll
      for (int k = 0; k < 1 << (chunks_log2 - lanes_log2); ++k) {
        CopyOnce<16>(to, from, own < left);
        to += (32 >> kHeadChunksLog2) * Traits::kWarpRowBytes;
        from += 512;
      }
    }
  }
};

// Copies K and V rows, in turn, of the tiles of a piece of bf16 tokens.
template <typename Traits, int kDim, int kHeadsLog2>
__device__ __forceinline__ void CopyRowsPiece(const DecodeParams& p, const PlanPiece& piece,
                                              int warp, int lane, Rings<Traits>& rings) {
  constexpr int kTokens = Traits::kRowStep / kCopyWarps;
  const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
  // Each side reads the slot numbers: a large tile's do not fit the registers.
  SlotReader<kTokens> slots(p.row_slots, piece, p.row_slot_log2, warp, lane);
  SlotReader<kTokens> other_slots = slots;
  const int64_t at = static_cast<int64_t>(piece.head_block << heads_log2) * (kDim * 2);
  const int tile_tokens =
      (Traits::kWarps * kRowWarpTokens) >> (heads_log2 + Traits::kColumnWarpsLog2);
  const int end = -kTokens * warp;
  // Keys and values of the first tile where there are more, or its keys alone.
  int early = p.rows_early == 0 ? 0 : piece.tokens > tile_tokens ? 2 : 1;
#pragma unroll 1
  for (int left = piece.tokens + end, side = 0; left > end; --early) {
    if (early == 0) WaitForPredecessors();
    rings.rows.WaitEmpty();
    const uint32_t stage = rings.rows.address();
    const char* const source = (side == 0 ? p.k_rows : p.v_rows) + at;
#pragma unroll 1
    for (int first = 0; first < tile_tokens; first += Traits::kRowStep) {
      RowCopier<Traits, kDim, kHeadsLog2>::Copy(p, stage, source, first + kTokens * warp, lane,
                                                slots, left - first);
      slots.Advance(p.row_slot_log2);
    }
    rings.rows.SignalFull();
    rings.rows.Advance();
    const SlotReader<kTokens> x = slots;
    slots = other_slots;
    other_slots = x;
    if (side != 0) left -= tile_tokens;
    side ^= 1;
  }
  rings.rows.WaitEmpty();
  rings.rows.SignalFull();
  rings.rows.Advance();
}

}  // namespace oscar
