// Scores, weights and outputs of the query heads of one multiply over 2-bit tokens. Device code.
#pragma once

#include "oscar/cuda/decode_queries_bytes.cuh"
#include "oscar/cuda/decode_queries_half.cuh"
#include "oscar/cuda/decode_scales.cuh"
#include "oscar/cuda/decode_softmax.cuh"

#include <type_traits>

namespace oscar {

// A lane (g, t) has the scores of tokens g + 8 i with query t and, if kCount is 2, query t + 4; its
// columns 2t and 2t + 1 of the outputs are those of these queries.
template <int kDim, int kGroups, int kCount>
struct QuantisedColumns {
  static constexpr int kSteps = kDim / 16;
  // Field 3 of the values' odd bytes is added up with the bytes' other fields, which saves cutting
  // it out; Finish takes those off. Several groups have a weight per field.
  static constexpr bool kWholeBytes = kGroups == 1;
  using Queries =
      std::conditional_t<kCount == 1, ByteQueries<kDim, kGroups>, HalfQueries<kDim, kGroups>>;
  static_assert(Queries::kCount == kCount);
  // Scores by query and token, and p s of 16 and 16 tokens as B operands.
  using Scores = float[kCount][4];
  using Weights = uint32_t[2][kGroups][2];
  using Scales = TileScales<kGroups>;

  Queries q;
  float o[kSteps][4];
  float max[kCount];  // running; zero until there is a score
  float sum[kCount];
  float zero[kGroups][kCount];  // sum of p s z, boosted, less what Centre took off o

  // Where the numbers are that a lane needs of the queries, `first` being the first one's head.
  // Heads that there are not have those of the first one of all: nobody reads their results.
  __device__ __forceinline__ static const char* Row(const DecodeParams& p, int request, int head,
                                                    int first) {
    const int column = first + Queries::Column();
    const int64_t row = (static_cast<int64_t>(request) * p.kv_heads + head) * p.group_size +
                        (column < p.group_size ? column : 0);
    return reinterpret_cast<const char*>(p.q + row * kDim + Queries::Channel());
  }

  __device__ __forceinline__ void Start(const DecodeParams& p, const char* row) {
    q.Load(p, row);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      max[c] = 0;
      sum[c] = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zero[group][c] = 0;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
  }

  // Scores minus the running maximum.
  __device__ __forceinline__ void GetScores(const typename Queries::Dots& dots,
                                            const Scales& scales, Scores& score) const {
#pragma unroll
    for (int i = 0; i < 4 * kCount; ++i) {
      const int c = i / 4, token = i % 4;
      float x = -max[c];
#pragma unroll
      for (int group = kGroups - 1; group >= 0; --group) {
        const ScaleZero key = scales.key[token][group];
        const float dot = fmaf(dots[group][c][token], q.factor[c], -key.zero * q.sum[group][c]);
        x = fmaf(key.scale, dot, x);
      }
      score[c][token] = x;
    }
  }

  // Takes tokens out; `left` from the warp's first one on exist.
  __device__ __forceinline__ static void Mask(int left, Scores& score) {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
#pragma unroll
    for (int i = 0; i < 4 * kCount; ++i) {
      if (g + 8 * (i % 4) >= left) score[i / 4][i % 4] = -INFINITY;
    }
  }

  // From scores to probabilities; their sum is that of `sums`, by query.
  __device__ __forceinline__ static float Exponentiate(const Scores& score, Scores& p,
                                                       float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < 4 * kCount; ++i) p[i / 4][i % 4] = Exp2(score[i / 4][i % 4]);
    float total = 0;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      sums[c] = (p[c][0] + p[c][1]) + (p[c][2] + p[c][3]);
      total = c == 0 ? sums[c] : total + sums[c];
    }
    return total;
  }

  // How far the largest scores of the queries lie above the maxima. `fresh`: there was no score
  // before.
  __device__ __forceinline__ static void GetRise(bool fresh, const Scores& score,
                                                 float (&rise)[kCount]) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const float largest = fmaxf(fmaxf(score[c][0], score[c][1]), fmaxf(score[c][2], score[c][3]));
      rise[c] = ColumnMax(fmaxf(fresh ? -INFINITY : 0.0F, largest));
    }
  }

  // Raises the maxima so that no score is positive, and multiplies what is boosted by
  // `boost_factor`. Whether there is a score now.
  __device__ __forceinline__ bool Raise(bool fresh, const float (&rise)[kCount], float boost_factor,
                                        Scores& score) {
    bool some = false;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      if (rise[c] == -INFINITY) continue;  // nothing but tokens that do not exist, for every query
      some = true;
      // The new maximum is rounded; scores follow the rounded one.
      const float top = max[c] + rise[c];
      const float step = top - max[c];
      max[c] = top;
#pragma unroll
      for (int token = 0; token < 4; ++token) score[c][token] -= step;
      if (!fresh) Scale(c, Exp2(-step), boost_factor);  // else there is nothing yet
    }
    return some;
  }

  // From probabilities to B operands.
  __device__ __forceinline__ void Weigh(const Scores& p, const float (&sums)[kCount],
                                        const Scales& scales, float boost, Weights& b) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) sum[c] += sums[c];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float w[kCount][4];
#pragma unroll
      for (int token = 0; token < 4; ++token) {
        const ScaleZero v = scales.value[token][group];
        const float boosted = v.scale * boost;
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
          w[c][token] = p[c][token] * boosted;
          // Exact weights, not the rounded ones: zero may be far (nearly constant rows).
          zero[group][c] = fmaf(w[c][token], v.zero, zero[group][c]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = 2 * half;
        if constexpr (kCount == 1) {
          // Columns 2t come out with tokens 0-7, columns 2t + 1 with tokens 8-15.
          b[half][group][0] = TransposeMatrix(PackHalf(w[0][first], w[0][first + 1]));
        } else {
          b[half][group][0] = TransposeMatrix(PackHalf(w[0][first], w[1][first]));
          b[half][group][1] = TransposeMatrix(PackHalf(w[0][first + 1], w[1][first + 1]));
        }
      }
    }
  }

  // With one query to a lane: tokens 8-15 of columns 2t. What columns 2t + 1 add up is left out.
  __device__ __forceinline__ static void CompleteWeights(uint32_t (&b)[kGroups][2]) {
    if constexpr (kCount == 1) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        b[group][1] = __shfl_xor_sync(~0U, b[group][0], 4);
      }
    }
  }

  // Takes what the first channel's sum of a query holds, near their mean, off all of them, and off
  // the zero term. The multiply rounds towards zero, and sums of codes, which are all positive,
  // would lose the more the longer they get.
  __device__ __forceinline__ void Centre() {
    uint32_t thread = threadIdx.x;
    Pin(thread);  // cheaper to work out again than to keep
    const int lane = static_cast<int>(thread) & 31;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      float part[4];  // by field
#pragma unroll
      for (int field = 0; field < 4; ++field) {
        if (kGroups > 1 || field == 0) part[field] = __shfl_sync(~0U, o[field][c], lane & 3);
        if (kGroups == 1 && field > 0) part[field] = 4 * part[field - 1];
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        // One lane keeps a query's share.
        if (lane < 4) zero[group][c] -= part[group] * static_cast<float>(1 << (24 - 2 * group));
      }
      const float whole = part[0] + part[1] + part[2] + part[3];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        o[s][c] -= IsWhole(s, 0) ? whole : part[s & 3];
        o[s][c + 2] -= IsWhole(s, 1) ? whole : part[s & 3];
      }
    }
  }

  // Whether rows 0-7 (half 0) or 8-15 of step s add up whole bytes: rows 8-15 of 64 channels hold
  // the odd bytes.
  __device__ __forceinline__ static constexpr bool IsWhole(int s, int half) {
    return kWholeBytes && (kDim == 64 ? s == 3 && half == 1 : s % 8 == 7);
  }

 private:
  __device__ __forceinline__ void Scale(int c, float factor, float boost_factor) {
    sum[c] *= factor;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) zero[group][c] *= factor * boost_factor;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      o[i][c] *= factor * boost_factor;
      o[i][c + 2] *= factor * boost_factor;
    }
  }
};

}  // namespace oscar
