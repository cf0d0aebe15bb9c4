// Scores, weights and outputs of eight columns of the multiply over 2-bit tokens. Device code.
#pragma once

#include "oscar/cuda/decode_quantised.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

template <int kDim, int kGroups, bool kShared>
struct QuantisedColumns {
  static constexpr int kScoreTiles = kShared ? 1 : 2;  // of 16 tokens
  static constexpr int kSteps = kDim / 16;
  // Field 3 of the values' odd bytes is added up with the bytes' other fields, which saves cutting
  // it out; Finish takes those off. Several groups have a weight per field.
  static constexpr bool kWholeBytes = kGroups == 1;
  // Codes times queries of 16 and 16 tokens, scores of the lane's tokens, and p s as B operands.
  using Products = float[2][kGroups][4];
  using Scores = float[kScoreTiles][4];
  using Weights = uint32_t[kScoreTiles][kGroups][2];
  using Scales = TileScales<kScoreTiles, kGroups>;
  using Queries = QuantisedQueries<kDim, kGroups, kShared>;

  Queries q;
  float o[kSteps][4];
  float max[2];  // running; zero until there is a score
  float sum[2];
  float zero[kGroups][2];  // sum of p s z, boosted, less what Centre took off o

  // `row`: of the queries, from Queries::Row.
  __device__ __forceinline__ void Start(const DecodeParams& p, const char* row) {
    q.Load(p, row);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      max[c] = 0;
      sum[c] = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zero[group][c] = 0;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
  }

  // Scores minus the running maximum.
  __device__ __forceinline__ void GetScores(const Products& products, const Scales& scales,
                                            Scores& score) const {
    const bool second = kShared && (threadIdx.x & 2) != 0;
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = i & 1;
        const ScaleZero(&key)[kGroups] = scales.key[s][i >> 1];
        float x = -max[c];
#pragma unroll
        for (int group = kGroups - 1; group >= 0; --group) {
          const float product = second ? products[1][group][i] : products[s][group][i];
          const float dot = fmaf(product, q.factor[c], -key[group].zero * q.sum[group][c]);
          x = fmaf(key[group].scale, dot, x);
        }
        score[s][i] = x;
      }
    }
  }

  // Takes tokens out; `left` from the warp's first one on exist.
  __device__ __forceinline__ static void Mask(int left, Scores& score) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = (kShared ? (t >> 1) * 16 : s * 16) + g + 8 * (i >> 1);
        score[s][i] = token < left ? score[s][i] : -INFINITY;
      }
    }
  }

  // From scores to probabilities; their sum is that of `sums`, of the lane's two columns.
  __device__ __forceinline__ static float Exponentiate(const Scores& score, Scores& p,
                                                       float (&sums)[2]) {
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[s][i] = Exp2(score[s][i]);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sums[c] = p[0][c] + p[0][c + 2];
      if constexpr (!kShared) sums[c] += p[1][c] + p[1][c + 2];
    }
    return sums[0] + sums[1];
  }

  // How far the largest scores of the two columns lie above the maxima. `fresh`: there was no score
  // before.
  __device__ __forceinline__ static void GetRise(bool fresh, const Scores& score,
                                                 float (&rise)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float largest = fresh ? -INFINITY : 0.0F;
#pragma unroll
      for (int s = 0; s < kScoreTiles; ++s) {
        largest = fmaxf(largest, fmaxf(score[s][c], score[s][c + 2]));
      }
      rise[c] = ColumnMax(largest, kShared);
    }
  }

  // Raises the maxima so that no score is positive, and multiplies what is boosted by
  // `boost_factor`. Whether there is a score now.
  __device__ __forceinline__ bool Raise(bool fresh, const float (&rise)[2], float boost_factor,
                                        Scores& score) {
    bool some = false;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (rise[c] == -INFINITY) continue;  // nothing but tokens that do not exist, in every column
      some = true;
      // The new maximum is rounded; scores follow the rounded one.
      const float top = max[c] + rise[c];
      const float step = top - max[c];
      const float factor = fresh ? 1.0F : Exp2(-step);
      max[c] = top;
#pragma unroll
      for (int s = 0; s < kScoreTiles; ++s) {
        score[s][c] -= step;
        score[s][c + 2] -= step;
      }
      sum[c] *= factor;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zero[group][c] *= factor * boost_factor;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        o[i][c] *= factor * boost_factor;
        o[i][c + 2] *= factor * boost_factor;
      }
    }
    return some;
  }

  // From probabilities to B operands.
  __device__ __forceinline__ void Weigh(const Scores& p, const float (&sums)[2],
                                        const Scales& scales, float boost, Weights& b) {
    sum[0] += sums[0];
    sum[1] += sums[1];
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const ScaleZero v = scales.value[s][row][group];
          const float boosted = v.scale * boost;
          const float w0 = p[s][2 * row] * boosted, w1 = p[s][2 * row + 1] * boosted;
          // Exact weights, not the rounded ones: zero may be far (nearly constant rows).
          zero[group][0] = fmaf(w0, v.zero, zero[group][0]);
          zero[group][1] = fmaf(w1, v.zero, zero[group][1]);
          b[s][group][row] = TransposeMatrix(PackHalf(w0, w1));
        }
      }
    }
  }

  // Takes what the first channel's sum of a column holds, near their mean, off all of them, and off
  // the zero term. The multiply rounds towards zero, and sums of codes, which are all positive,
  // would lose the more the longer they get.
  __device__ __forceinline__ void Centre() {
    uint32_t thread = threadIdx.x;
    Pin(thread);  // cheaper to work out again than to keep
    const int lane = static_cast<int>(thread) & 31;
    // One lane keeps a column's share; of shared columns, those that are used.
    const bool keeps = lane < (kShared ? 2 : 4);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float part[4];  // by field
#pragma unroll
      for (int field = 0; field < 4; ++field) {
        if (kGroups > 1 || field == 0) part[field] = __shfl_sync(~0U, o[field][c], lane & 3);
        if (kGroups == 1 && field > 0) part[field] = 4 * part[field - 1];
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (keeps) zero[group][c] -= part[group] * static_cast<float>(1 << (24 - 2 * group));
      }
      const float whole = part[0] + part[1] + part[2] + part[3];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        o[s][c] -= IsWhole(s, c) ? whole : part[s & 3];
        o[s][c + 2] -= IsWhole(s, c + 2) ? whole : part[s & 3];
      }
    }
  }

  // The output without the factors of the subnormal codes and without its zero term. `down`: 1 /
  // boost.
  __device__ __forceinline__ void Finish(bool fresh, float down, WarpResult<kSteps>& result) {
    if constexpr (kWholeBytes) TakeOtherFieldsOff();
    const bool unused = kShared && (threadIdx.x & 2) != 0;  // columns 4-7
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      result.max[c] = fresh ? kNoScore : max[c];
      result.sum[c] = ColumnSum(sum[c]);
      float zeros[kGroups];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zeros[group] = ColumnSum(zero[group][c]) * down;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int field = s & 3;
        const float up = unused ? 0.0F : down * static_cast<float>(1 << (24 - 2 * field));
        const float z = zeros[kGroups == 1 ? 0 : field];
        result.o[s][c] = o[s][c] * up - z;
        result.o[s][c + 2] = o[s][c + 2] * up - z;
      }
    }
  }

 private:
  // Whether number i of step s adds up whole bytes: rows 8-15 of 64 channels hold the odd bytes.
  __device__ __forceinline__ static constexpr bool IsWhole(int s, int i) {
    return kWholeBytes && (kDim == 64 ? s == 3 && i >= 2 : s % 8 == 7);
  }
  // Leaves field 3 alone in its step (kWholeBytes).
  __device__ __forceinline__ void TakeOtherFieldsOff() {
#pragma unroll
    for (int c = kDim == 64 ? 2 : 0; c < 4; ++c) {
#pragma unroll
      for (int last = kDim == 64 ? 3 : 7; last < kSteps; last += 8) {
        o[last][c] -= o[last - 3][c] + o[last - 2][c] + o[last - 1][c];
      }
    }
  }
};

}  // namespace oscar
