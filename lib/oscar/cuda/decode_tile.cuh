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
// Bytes of a block's (scale, zero) of one token, as a power of two.
template <int kHeadsLog2>
__device__ __forceinline__ int ScaleRowLog2(const DecodeParams& p) {
  return p.head_scale_log2 + HeadsLog2<kHeadsLog2>(p);
}

// Tiles of a piece that are fetched without waiting for the launches before: few, as they are in the
// way of those launches' sums, which a long piece has more time to make up for, and a longer one still
// where tiles of half-precision scales go by faster.
__device__ __forceinline__ int EarlyTiles(const DecodeParams& p, int tiles) {
  const int each = p.scale_kind == ScaleKind::kF32 ? 8 : 24;
  return p.quantised_early != 0 ? min(1 + (tiles + 1) / each, 3) : 0;
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

// With eight or four heads of one group the (scale, zero) of a token may be four or two 16-byte
// units; their order in the row depends on the token, so that lanes that read one head of eight
// tokens meet as many banks as there can be. row_log2: bytes of a row.
__device__ __forceinline__ int ScaleSwizzle(int row_log2, int token) {
  return row_log2 == 6 ? (token >> 1) & 3 : (token >> 2) & 1;
}
template <int kHeadsLog2>
__device__ __forceinline__ bool SwizzlesScales(const DecodeParams& p) {
  return kHeadsLog2 >= 2 && p.groups == 1 && ScaleRowLog2<kHeadsLog2>(p) >= 5;
}

}  // namespace oscar
