// Partial attention over 2-bit tokens. Device code.
//
// A block serves `heads` KV heads (4, 2 or 1) with eight warps; a warp takes one head and 32 tokens
// of every tile. The codes go to the tensor cores as they lie in the cache: the bytes of 16 tokens,
// fetched with ldmatrix, masked to one 2-bit field, are half-precision subnormals code * 4^i *
// 2^-24, exact, in the order of an A operand. Field i of byte j is channel j + i D/4, so the
// queries are permuted and scaled by 2^(6-2i) once, and every product is code * q * 2^-18. For the
// output the same bytes, fetched transposed, are the A operand of O^T = V^T P^T.
//
// With at most four query heads per KV head the eight columns of the multiply hold each head twice;
// scores of the first 16 tokens are taken from columns 0-3, of the second from 4-7, and the two
// halves of the output columns are added at the end.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

struct ScaleZero {
  float scale, zero;
};

// kBytes: 8 for float32, 4 for the 16-bit kinds.
template <int kBytes>
__device__ __forceinline__ ScaleZero LoadScaleZero(const char* at, ScaleKind kind) {
  if constexpr (kBytes == 8) {
    const float2 pair = *reinterpret_cast<const float2*>(at);
    return {pair.x, pair.y};
  } else {
    const uint32_t packed = *reinterpret_cast<const uint32_t*>(at);
    if (kind == ScaleKind::kF16) {
      // Constant rows overflow half precision; an infinity counts as the largest number.
      const float2 pair = UnpackHalf(packed);
      return {fminf(pair.x, 65504.0F), fminf(fmaxf(pair.y, -65504.0F), 65504.0F)};
    }
    return {LowBFloat16(packed), HighBFloat16(packed)};
  }
}

// The low word of a slot number: no pool has 2^31 slots, whatever the width of its numbers.
__device__ __forceinline__ uint32_t ReadSlot(uint32_t ring_address) {
  uint32_t slot;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(slot) : "r"(ring_address) : "memory");
  return slot;
}

// KV heads of a block as a power of two, known to the compiler in the instances that matter.
template <int kHeadsLog2>
__device__ __forceinline__ int HeadsLog2(const DecodeParams& p) {
  return kHeadsLog2 >= 0 ? kHeadsLog2 : p.heads_log2;
}

// Copies the slot numbers of tile after tile into their places in a ring of tiles.
class SlotCopier {
 public:
  __device__ SlotCopier(const char* list, int64_t begin, int available, int tile_tokens,
                        int log2_bytes, int ring_tiles, uint32_t ring)
      : from_(list + ((begin + static_cast<int>(threadIdx.x)) << log2_bytes)),
        left_(available - static_cast<int>(threadIdx.x)),
        tokens_(tile_tokens),
        log2_(log2_bytes),
        ring_tiles_(ring_tiles),
        ring_(ring + (static_cast<uint32_t>(threadIdx.x) << log2_bytes)) {}

  // The next tile; tokens that do not exist become slot 0.
  __device__ __forceinline__ void CopyNext() {
    if (static_cast<int>(threadIdx.x) < tokens_) {
      const uint32_t to = ring_ + static_cast<uint32_t>((at_ * tokens_) << log2_);
      if (log2_ == 3) {
        CopyAsync<8>(to, from_, left_ > 0);
      } else {
        CopyAsync<4>(to, from_, left_ > 0);
      }
    }
    from_ += static_cast<int64_t>(tokens_) << log2_;
    left_ -= tokens_;
    at_ = at_ + 1 == ring_tiles_ ? 0 : at_ + 1;
  }

 private:
  const char* from_;
  int left_, tokens_, log2_, ring_tiles_;
  uint32_t ring_;
  int at_ = 0;
};

// Offset of 16-byte chunk `chunk` of token `token` in the codes of a tile, whose rows are the
// block's heads of one token (16 << chunks_log2 bytes). Chunks are exchanged within 128 bytes so
// that eight tokens at one chunk fall into eight bank groups; copies of a row stay within its 128
// bytes.
__device__ __forceinline__ int CodeOffset(int token, int chunk, int chunks_log2) {
  const int shift = chunks_log2 < 3 ? 3 - chunks_log2 : 0;
  const int mask = chunks_log2 < 3 ? (1 << chunks_log2) - 1 : 7;
  return ((token << chunks_log2) + (chunk ^ ((token >> shift) & mask))) * 16;
}

// Keeps a value in a register: the compiler otherwise works it out anew in every turn of a loop.
__device__ __forceinline__ void Pin(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void Pin(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void Pin(const char*& x) { asm volatile("" : "+l"(x)); }

// With eight heads and float32 the (scale, zero) of a token are four 16-byte units; their order in
// the row depends on the token, so that eight lanes that read one head of eight tokens meet eight
// banks. Lanes of a half warp read tokens g, and with shared columns tokens 16 + g too.
template <typename Traits>
__device__ __forceinline__ int ScaleSwizzle(int token) {
  return ((token >> 1) & 1) | (Traits::kSharedColumns ? (token >> 3) & 2 : 0);
}
template <int kHeadsLog2>
__device__ __forceinline__ bool SwizzlesScales(const DecodeParams& p) {
  return kHeadsLog2 == kWideHeadsLog2 && p.scale_row_log2 == 6;
}

// Copies the tiles of one piece into shared memory, tile after tile. A thread copies one 16-byte
// chunk of the block's heads, of kDim / 64 tokens of a tile, for K and V; and one or a few units of
// up to 16 bytes of (scale, zero) of K or V.
template <typename Traits, int kDim, int kHeadsLog2>
class QuantisedLoader {
  static constexpr int kChunks = kDim / 64;
  static constexpr int kChunksLog2 = kDim == 64 ? 0 : (kDim == 128 ? 1 : 2);
  // Units per thread: with four heads or more 16 bytes each; fewer heads may mean smaller ones.
  static constexpr bool kWholeUnits = kHeadsLog2 >= 2;
  static constexpr int kScaleUnits = Traits::kGroups == 1 ? (kWholeUnits ? 1 : 2) : 4;

 public:
  __device__ QuantisedLoader(const DecodeParams& p, const PlanPiece& piece, char* shared,
                             char* ring)
      : p_(p), stages_(SharedAddress(shared)), ring_(SharedAddress(ring)), left_(piece.tokens) {
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int tid = static_cast<int>(threadIdx.x);
    const int chunk = tid & ((1 << (heads_log2 + kChunksLog2)) - 1);
    first_ = tid >> (heads_log2 + kChunksLog2);
    k_codes_ =
        p.k_codes + static_cast<int64_t>(piece.head_block << heads_log2) * (kDim / 4) + chunk * 16;
    v_codes_ = k_codes_ + (p.v_codes - p.k_codes);
    code_target_ = stages_ + CodeTarget(first_, chunk);
    code_slot_ = ring_ + (static_cast<uint32_t>(first_) << p.quantised_slot_log2);
    scale_offset_ = static_cast<int64_t>(piece.head_block) << p.scale_row_log2;
    LocateUnit(tid, unit_token_, unit_source_, unit_target_);
    unit_target_ += stages_ + 2 * Traits::kCodeBytes;
    unit_slot_ = ring_ + (static_cast<uint32_t>(min(unit_token_, tile_tokens() - 1))
                          << p.quantised_slot_log2);
    Pin(first_);
    Pin(k_codes_);
    Pin(v_codes_);
    Pin(code_target_);
    Pin(code_slot_);
    Pin(unit_token_);
    Pin(unit_source_);
    Pin(unit_target_);
    Pin(unit_slot_);
    scale_stride_ = p.scale_stride;
    Pin(scale_stride_);
  }

  // The next tile; nothing once all tokens are copied.
  __device__ __forceinline__ void CopyNext() {
    if (left_ <= 0) return;
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p_);
    const auto step_of = [&](int i) {
      return i * (Traits::kThreads >> (heads_log2 + kChunksLog2));
    };
    // All slot numbers first: their latencies overlap.
    uint32_t slot[kChunks], unit_slot = 0;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      slot[i] = ReadSlot(code_slot_ + ring_at_ +
                         (static_cast<uint32_t>(step_of(i)) << p_.quantised_slot_log2));
    }
    const bool has_unit = unit_token_ < tile_tokens();
    if (kWholeUnits || has_unit) unit_slot = ReadSlot(unit_slot_ + ring_at_);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint64_t from = static_cast<uint64_t>(slot[i]) * p_.code_stride;
      const uint32_t to = StepTarget(step_of(i)) + stage_at_;
      CopyAsync<16>(to, k_codes_ + from, first_ + step_of(i) < left_);
      CopyAsync<16>(to + Traits::kCodeBytes, v_codes_ + from, first_ + step_of(i) < left_);
    }
    if (has_unit) {
      CopyUnit(unit_target_ + stage_at_,
               unit_source_ + static_cast<uint64_t>(unit_slot) * scale_stride_,
               unit_token_ < left_);
    }
#pragma unroll
    for (int i = 1; i < kScaleUnits; ++i) CopyLaterUnit(i);
    left_ -= tile_tokens();
    stage_at_ = stage_at_ == (Traits::kStages - 1) * Traits::kStageBytes
                    ? 0
                    : stage_at_ + Traits::kStageBytes;
    const uint32_t tile_bytes = static_cast<uint32_t>(tile_tokens()) << p_.quantised_slot_log2;
    ring_at_ = ring_at_ == (2 * Traits::kStages - 1) * tile_bytes ? 0 : ring_at_ + tile_bytes;
  }

  __device__ __forceinline__ int tile_tokens() const {
    return (Traits::kWarps * kQuantisedWarpTokens) >> HeadsLog2<kHeadsLog2>(p_);
  }

 private:
  __device__ __forceinline__ uint32_t CodeTarget(int token, int chunk) const {
    return static_cast<uint32_t>(CodeOffset(token, chunk, HeadsLog2<kHeadsLog2>(p_) + kChunksLog2));
  }
  // Where the thread's chunk of its i-th token goes in the first stage: a fixed distance on, as
  // steps are whole multiples of the eight tokens after which the exchange of chunks repeats.
  __device__ __forceinline__ uint32_t StepTarget(int step) const {
    return code_target_ +
           static_cast<uint32_t>((step << (HeadsLog2<kHeadsLog2>(p_) + kChunksLog2)) * 16);
  }
  __device__ __forceinline__ int UnitLog2() const {
    return kWholeUnits ? 4 : min(p_.scale_row_log2, 4);
  }
  // Unit `i` of the tile: K first, then V. A token out of range switches it off.
  __device__ __forceinline__ void LocateUnit(int i, int& token, const char*& source,
                                             uint32_t& target) const {
    const int per_token_log2 = p_.scale_row_log2 - UnitLog2();
    const int units = tile_tokens() << per_token_log2;
    const bool value = i >= units;
    const int unit = value ? i - units : i;
    const int place = unit & ((1 << per_token_log2) - 1);
    token = i < 2 * units ? unit >> per_token_log2 : INT32_MAX;
    source = (value ? p_.v_scales : p_.k_scales) + scale_offset_ + (place << UnitLog2());
    const int shift = SwizzlesScales<kHeadsLog2>(p_) ? place ^ ScaleSwizzle<Traits>(token) : place;
    target = static_cast<uint32_t>((value ? Traits::kScaleBytes : 0) +
                                   ((unit - place + shift) << UnitLog2()));
  }
  __device__ __forceinline__ void CopyLaterUnit(int i) const {
    int token;
    const char* source;
    uint32_t target;
    LocateUnit(static_cast<int>(threadIdx.x) + i * Traits::kThreads, token, source, target);
    if (token >= tile_tokens()) return;
    const uint32_t slot =
        ReadSlot(ring_ + ring_at_ + (static_cast<uint32_t>(token) << p_.quantised_slot_log2));
    CopyUnit(stages_ + stage_at_ + 2 * Traits::kCodeBytes + target,
             source + static_cast<uint64_t>(slot) * p_.scale_stride, token < left_);
  }
  __device__ __forceinline__ void CopyUnit(uint32_t to, const char* from, bool wanted) const {
    if (kWholeUnits || UnitLog2() == 4) {
      CopyAsync<16>(to, from, wanted);
    } else if (UnitLog2() == 3) {
      CopyAsync<8>(to, from, wanted);
    } else {
      CopyAsync<4>(to, from, wanted);
    }
  }

  const DecodeParams& p_;
  uint32_t stages_, ring_;
  int left_;   // tokens from the next tile on
  int first_;  // the thread's first token in a tile
  const char *k_codes_, *v_codes_;
  uint32_t code_target_, code_slot_;
  int64_t scale_offset_;
  int unit_token_;
  const char* unit_source_;
  uint32_t unit_target_, unit_slot_, scale_stride_;
  uint32_t stage_at_ = 0, ring_at_ = 0;  // bytes
};

// The queries of one KV head as B operands in half precision, and what turns accumulators into
// base-2 scores.
template <int kDim, int kColTiles, int kGroups>
struct QuantisedQueries {
  static constexpr int kSteps = kDim / 16;
  uint32_t b[kColTiles][kSteps][2];
  float factor[kColTiles][2];        // of columns 2t, 2t + 1
  float sum[kColTiles][kGroups][2];  // of the channels of a group, in base-2 score units

  // Channels of step s: field i = s % 4 of bytes 4t + parity, 4t + 2 + parity (and 16 on), see the
  // head of the file. 64 channels: both parities in one step, steps are fields.
  __device__ void Load(const DecodeParams& p, int request, int head, int columns) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
      const int column = columns == 4 ? (g & 3) : tile * 8 + g;
      const bool present = column < p.group_size;
      const int64_t row = (static_cast<int64_t>(request) * p.kv_heads + head) * p.group_size +
                          (present ? column : 0);
      const uint16_t* q = p.q + row * kDim + 4 * t;
      uint2 raw[kDim / 16];
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        raw[i] = present ? *reinterpret_cast<const uint2*>(q + 16 * i) : make_uint2(0, 0);
        largest =
            fmaxf(largest, fmaxf(fabsf(LowBFloat16(raw[i].x)), fabsf(HighBFloat16(raw[i].x))));
        largest =
            fmaxf(largest, fmaxf(fabsf(LowBFloat16(raw[i].y)), fabsf(HighBFloat16(raw[i].y))));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
      // |q| * up < 2^9, and * 2^6 still fits half precision. Powers of two by their bits.
      const int biased = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 35), 219);
      const int exponent = largest > 0 ? 8 + 127 - biased : 0;
      const float up = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
      const float down =
          p.logit_scale * __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
      float sums[kGroups];
#pragma unroll
      for (int i = 0; i < kGroups; ++i) sums[i] = 0;
      Convert(tile, raw, up, sums);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        float s = sums[i] * down;
        s += __shfl_xor_sync(~0U, s, 1);
        s += __shfl_xor_sync(~0U, s, 2);
        sum[tile][i][0] = __shfl_sync(~0U, s, 8 * t);
        sum[tile][i][1] = __shfl_sync(~0U, s, 8 * t + 4);
      }
      const float f = down * 0x1p18F;
      factor[tile][0] = __shfl_sync(~0U, f, 8 * t);
      factor[tile][1] = __shfl_sync(~0U, f, 8 * t + 4);
    }
  }

 private:
  __device__ __forceinline__ void Convert(int tile, const uint2 (&raw)[kDim / 16], float up,
                                          float (&sums)[kGroups]) {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      // Channels 16 i + 4 t + 0..3.
      const int field = 16 * i / (kDim / 4);
      const float scale = up * static_cast<float>(1 << (6 - 2 * field));
      const uint32_t even = PackHalf(LowBFloat16(raw[i].x) * scale, LowBFloat16(raw[i].y) * scale);
      const uint32_t odd = PackHalf(HighBFloat16(raw[i].x) * scale, HighBFloat16(raw[i].y) * scale);
      if constexpr (kDim == 64) {
        b[tile][field][0] = even;
        b[tile][field][1] = odd;
      } else {
        const int half = i % (kDim / 64);  // 16-byte chunk of the quarter
        const int step = (half >> 1) * 8 + field;
        b[tile][step][half & 1] = even;
        b[tile][step + 4][half & 1] = odd;
      }
      const float2 e = UnpackHalf(even);
      const float2 o = UnpackHalf(odd);
      const float part =
          (e.x + e.y + o.x + o.y) * (1.0F / static_cast<float>(1 << (6 - 2 * field)));
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        // With several groups each field keeps its own sum.
        if (kGroups == 1 || group == field) sums[group] += part;
      }
    }
  }
};

}  // namespace oscar
