// Where codes and (scale, zero) lie in a tile of quantised tokens: what the warps that copy and
// those that compute agree on. Device code.
#pragma once

#include "oscar/cuda/decode_params.h"

namespace oscar {

// KV heads of a block as a power of two, known to the compiler in the instances that matter.
template <int kHeadsLog2>
__device__ __forceinline__ int HeadsLog2(const DecodeParams& p) {
  return kHeadsLog2 >= 0 ? kHeadsLog2 : p.heads_log2;
}

// Offset of 16-byte chunk `chunk` of token `token` in the codes of a tile, whose rows are the
// block's heads of one token (16 << chunks_log2 bytes). Chunks are exchanged within 128 bytes so
// that eight tokens at one chunk fall into eight bank groups; copies of a row stay within its 128
// bytes.
__device__ __forceinline__ int CodeOffset(int token, int chunk, int chunks_log2) {
  const int shift = chunks_log2 < 3 ? 3 - chunks_log2 : 0;
  const int mask = chunks_log2 < 3 ? (1 << chunks_log2) - 1 : 7;
  return ((token << chunks_log2) + (chunk ^ ((token >> shift) & mask))) * 16;
}

// With eight heads and float32 the (scale, zero) of a token are four 16-byte units; their order in
// the row depends on the token, so that eight lanes that read one head of eight tokens meet eight
// banks. Lanes of a half warp read tokens g, and with shared columns tokens 16 + g too.
template <bool kSharedColumns>
__device__ __forceinline__ int ScaleSwizzle(int token) {
  return ((token >> 1) & 1) | (kSharedColumns ? (token >> 3) & 2 : 0);
}
template <int kHeadsLog2>
__device__ __forceinline__ bool SwizzlesScales(const DecodeParams& p) {
  return kHeadsLog2 == 3 && p.scale_row_log2 == 6;
}

}  // namespace oscar
