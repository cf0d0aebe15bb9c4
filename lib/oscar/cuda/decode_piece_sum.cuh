// The sum over the warps of a block at the end of a piece. Device code.
//
// The warps of a head add up in pairs until two are left. Those exchange halves of their results, and
// the lanes of copied columns once more, so that each lane adds up and writes its own share of the
// partial result.
#pragma once

#include "oscar/cuda/decode_ring.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

// Warp: the kind of warp, which knows the channels of its fragments.
template <typename Warp, typename Traits, int kDim>
class PieceSum {
  static constexpr bool kShared = Traits::kSharedColumns;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kThreads = 32 * Traits::kWarps;
  // What a warp gives away, in units of four numbers a lane; maxima and sums are the last.
  static constexpr int kGiven = kSteps / 2 + 1;
  static_assert(Traits::kWarps * kGiven * 512 <= Traits::kStageBytes &&
                Traits::kWarps * kGiven * 512 <= Traits::kRowStageBytes);

 public:
  __device__ PieceSum(const DecodeParams& p, const PlanPiece& piece, const WarpPlace& place,
                      int heads_log2)
      : p_(p), piece_(piece), place_(place), heads_log2_(heads_log2) {}

  // By all threads that compute. `results`: of the warp's column tiles; `scratch`: a stage.
  __device__ __forceinline__ void Run(WarpResult<kSteps> (&results)[Traits::kColumnTiles],
                                      char* scratch) const {
#pragma unroll
    for (int tile = 0; tile < Traits::kColumnTiles; ++tile) {
      if (tile > 0) SynchroniseThreads(kThreads);  // all have taken the last tile's
      AddUp(results[tile], tile, scratch);
    }
  }

 private:
  __device__ __forceinline__ void AddUp(WarpResult<kSteps>& r, int tile, char* scratch) const {
    r.AddParts(place_, kThreads, scratch);
    float4* const areas = reinterpret_cast<float4*>(scratch) + (threadIdx.x & 31);
    float4* const mine = areas + place_.warp * kGiven * 32;
    if (place_.part == 0) Give<0>(r, mine);
    if (place_.part == 1) Give<1>(r, mine);
    SynchroniseThreads(kThreads);
    const int pair = Traits::kWarps / place_.parts;
    if (place_.part == 0) Take<0>(r, tile, mine + pair * kGiven * 32);
    if (place_.part == 1) Take<1>(r, tile, mine - pair * kGiven * 32);
  }

  // Part 0 keeps the steps whose bit 1 is 0, part 1 the others.
  template <int kPart>
  __device__ __forceinline__ static void Give(const WarpResult<kSteps>& r, float4* area) {
    area[32 * (kGiven - 1)] = make_float4(r.max[0], r.max[1], r.sum[0], r.sum[1]);
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      const float(&o)[4] = r.o[i / 2 * 4 + 2 * (1 - kPart) + i % 2];
      area[32 * i] = make_float4(o[0], o[1], o[2], o[3]);
    }
  }

  template <int kPart>
  __device__ __forceinline__ void Take(const WarpResult<kSteps>& r, int tile,
                                       const float4* area) const {
    const float4 other = area[32 * (kGiven - 1)];
    float top[2], mine[2], theirs[2], sum[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float other_max = c == 0 ? other.x : other.y;
      top[c] = fmaxf(r.max[c], other_max);
      mine[c] = Exp2(r.max[c] - top[c]);
      theirs[c] = Exp2(other_max - top[c]);
      sum[c] = r.sum[c] * mine[c] + (c == 0 ? other.z : other.w) * theirs[c];
    }
    // By the lowest bit of the step.
    float kept[2][kSteps / 4][4];
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      const float(&o)[4] = r.o[i / 2 * 4 + 2 * kPart + i % 2];
      const float4 x = area[32 * i];
      float(&to)[4] = kept[i % 2][i / 2];
      to[0] = o[0] * mine[0] + x.x * theirs[0];
      to[1] = o[1] * mine[1] + x.y * theirs[1];
      to[2] = o[2] * mine[0] + x.z * theirs[0];
      to[3] = o[3] * mine[1] + x.w * theirs[1];
    }
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int t = lane & 3;
    const bool copy = kShared && t >= 2;
    if constexpr (kShared) AddCopies(kept, copy);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (kShared) sum[c] += __shfl_xor_sync(~0U, sum[c], 2);
      const int column = kShared ? 2 * (t & 1) + c : (place_.columns + tile) * 8 + 2 * t + c;
      if (column >= p_.group_size) continue;
      const int64_t row =
          static_cast<int64_t>(piece_.partial) * (p_.group_size << heads_log2_) +
          place_.head_in_block * p_.group_size + column;
      float* const out = p_.partial_o + row * kDim;
      Warp::Store(out, kept[0], c, 2 * kPart + (copy ? 1 : 0));
      if constexpr (!kShared) Warp::Store(out, kept[1], c, 2 * kPart + 1);
      if (kPart == 0 && lane < 4 && !copy) {
        reinterpret_cast<float2*>(p_.partial_sums)[row] = make_float2(top[c], sum[c]);
      }
    }
  }

  // Adds columns 4-7, which belong to the heads of columns 0-3: their lanes end with the odd steps,
  // those of columns 0-3 with the even ones, all in kept[0].
  __device__ __forceinline__ static void AddCopies(float (&kept)[2][kSteps / 4][4], bool copy) {
#pragma unroll
    for (int j = 0; j < kSteps / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float away = copy ? kept[0][j][i] : kept[1][j][i];
        const float here = copy ? kept[1][j][i] : kept[0][j][i];
        kept[0][j][i] = here + __shfl_xor_sync(~0U, away, 2);
      }
    }
  }

  const DecodeParams& p_;
  const PlanPiece& piece_;
  const WarpPlace& place_;
  int heads_log2_;
};

}  // namespace oscar
