// Partial results in memory and their sum. Device code.
//
// Every piece of a request and block of heads leaves a partial result in memory and counts itself
// as done; the block that is done last adds them up, unless a kernel of its own does (decode.cu).
// The order of a sum is that of the tokens, whoever adds it up.
#pragma once

#include "oscar/cuda/decode_ring.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

// Query heads of one request and block of heads.
struct OutputRows {
  int request, head_block, columns;
  __device__ int KvHead(const DecodeParams& p, int row) const {
    return (head_block << p.heads_log2) + row / p.group_size;
  }
  // Of the row in [requests, q_heads].
  __device__ int64_t At(const DecodeParams& p, int row) const {
    return (static_cast<int64_t>(request) * p.head_blocks + head_block) * columns + row;
  }
};

// kDim / 32 consecutive channels of one row per lane.
template <int kDim>
struct LaneRow {
  static constexpr int kPer = kDim / 32;
  float x[kPer];

  __device__ __forceinline__ static LaneRow Load(const float* row) {
    const float* const at = row + (static_cast<int>(threadIdx.x) & 31) * kPer;
    LaneRow r;
    if constexpr (kPer == 2) {
      const float2 v = __ldcg(reinterpret_cast<const float2*>(at));
      r.x[0] = v.x;
      r.x[1] = v.y;
    } else {
#pragma unroll
      for (int i = 0; i < kPer; i += 4) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(at + i));
        r.x[i] = v.x;
        r.x[i + 1] = v.y;
        r.x[i + 2] = v.z;
        r.x[i + 3] = v.w;
      }
    }
    return r;
  }
  __device__ __forceinline__ void Store(float* row) const {
    float* const at = row + (static_cast<int>(threadIdx.x) & 31) * kPer;
#pragma unroll
    for (int i = 0; i < kPer; i += 2) {
      *reinterpret_cast<float2*>(at + i) = make_float2(x[i], x[i + 1]);
    }
  }
  __device__ __forceinline__ void StoreHalf(__nv_bfloat16* row) const {
    __nv_bfloat16* const at = row + (static_cast<int>(threadIdx.x) & 31) * kPer;
#pragma unroll
    for (int i = 0; i < kPer; i += 2) {
      *reinterpret_cast<uint32_t*>(at + i) = PackBFloat16(x[i], x[i + 1]);
    }
  }
};

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, s));
  return x;
}
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) x += __shfl_xor_sync(~0U, x, s);
  return x;
}

// What a warp adds up for one row: with the largest maximum M, o = sum_i 2^(max_i - M) o_i /
// sum_i 2^(max_i - M) sum_i.
template <int kDim>
struct MergedRow {
  static constexpr int kPer = kDim / 32;
  // Rows under way at once: all that a warp of the merge kernel takes on 132 multiprocessors.
  static constexpr int kBatch = 9;
  LaneRow<kDim> o;
  float lse;  // base 2

  // Partials first, first + step, ...: `count` of them.
  __device__ __forceinline__ MergedRow(const DecodeParams& p, int columns, int row, int first,
                                       int step, int count) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    float max = -INFINITY, weight = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) o.x[i] = 0;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 32) {
      const auto at = [&](int i) {
        return static_cast<int64_t>(first + (begin + i) * step) * columns + row;
      };
      const int here = min(count - begin, 32);
      // The first rows are under way before their weights are known.
      LaneRow<kDim> part[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        part[u] = LaneRow<kDim>::Load(p.partial_o + at(min(u, here - 1)) * kDim);
      }
      float2 mine = make_float2(-INFINITY, 0);
      if (lane < here) mine = __ldcg(reinterpret_cast<const float2*>(p.partial_sums) + at(lane));
      const float top = WarpMax(fmaxf(max, mine.x));
      const float factor = mine.x > -INFINITY ? Exp2(mine.x - top) : 0.0F;
      const float old = max > -INFINITY ? Exp2(max - top) : 0.0F;
      weight = weight * old + WarpSum(factor * mine.y);
      max = top;
#pragma unroll
      for (int i = 0; i < kPer; ++i) o.x[i] *= old;
#pragma unroll 1
      for (int i = 0; i < here; i += kBatch) {
        // Past the end: the last one again, at a factor of zero.
        if (i > 0) {
#pragma unroll
          for (int u = 0; u < kBatch; ++u) {
            part[u] = LaneRow<kDim>::Load(p.partial_o + at(min(i + u, here - 1)) * kDim);
          }
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const float weight_of = __shfl_sync(~0U, factor, (i + u) & 31);
          const float f = i + u < here ? weight_of : 0.0F;
#pragma unroll
          for (int j = 0; j < kPer; ++j) o.x[j] = fmaf(f, part[u].x[j], o.x[j]);
        }
      }
    }
    Divide(max, weight);
  }
  // Of up to 32 rows of kDim + 4 numbers in shared memory: results of the other constructor, the
  // log-sum-exp behind the channels.
  __device__ __forceinline__ MergedRow(const float* rows, int count) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const float mine = lane < count ? rows[lane * (kDim + 4) + kDim] : -INFINITY;
    const float max = WarpMax(mine);
    const float factor = mine > -INFINITY ? Exp2(mine - max) : 0.0F;
    const float weight = WarpSum(factor);
#pragma unroll
    for (int j = 0; j < kPer; ++j) o.x[j] = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float f = __shfl_sync(~0U, factor, i);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        o.x[j] = fmaf(f, rows[i * (kDim + 4) + lane * kPer + j], o.x[j]);
      }
    }
    Divide(max, weight);
  }

 private:
  __device__ __forceinline__ void Divide(float max, float weight) {
    const float inverse = weight > 0 ? __frcp_rn(weight) : 0.0F;
#pragma unroll
    for (int i = 0; i < kPer; ++i) o.x[i] *= inverse;
    lse = weight > 0 ? max + log2f(weight) : -INFINITY;
  }
};

// out[j] = sum_d o[d] R[j, d], a channel j per lane in turn, summed in the order of d.
template <int kDim>
__device__ __forceinline__ void StoreRotated(const DecodeParams& p, const LaneRow<kDim>& o,
                                             const uint16_t* rotation, int64_t out) {
  constexpr int kPer = kDim / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll 1
  for (int j = lane; j < kDim; j += 32) {
    float sum = 0;
#pragma unroll 4
    for (int from = 0; from < 32; ++from) {
#pragma unroll
      for (int i = 0; i < kPer; i += 2) {
        const uint32_t pair =
            *reinterpret_cast<const uint32_t*>(rotation + j * kDim + from * kPer + i);
        sum = fmaf(__shfl_sync(~0U, o.x[i], from), LowBFloat16(pair), sum);
        sum = fmaf(__shfl_sync(~0U, o.x[i + 1], from), HighBFloat16(pair), sum);
      }
    }
    if (p.o_is_bf16 != 0) {
      static_cast<__nv_bfloat16*>(p.o)[out * kDim + j] = __float2bfloat16_rn(sum);
    } else {
      static_cast<float*>(p.o)[out * kDim + j] = sum;
    }
  }
}

// The result of a row.
template <int kDim>
__device__ __forceinline__ void StoreOutput(const DecodeParams& p, const OutputRows& rows, int row,
                                            const LaneRow<kDim>& o, float lse) {
  const int64_t out = rows.At(p, row);
  if (p.v_rotation != nullptr) {
    const int matrix = p.rotation_per_head != 0 ? rows.KvHead(p, row) : 0;
    StoreRotated<kDim>(p, o, p.v_rotation + static_cast<int64_t>(matrix) * kDim * kDim, out);
  } else if (p.o_is_bf16 != 0) {
    o.StoreHalf(static_cast<__nv_bfloat16*>(p.o) + out * kDim);
  } else {
    o.Store(static_cast<float*>(p.o) + out * kDim);
  }
  if ((threadIdx.x & 31) == 0 && p.lse != nullptr) p.lse[out] = lse * 0.6931471805599453F;
}

// Adds the partial results of a piece's request up once they are all there.
template <typename Traits, int kDim>
class PieceMerge {
  static constexpr int kWarps = Traits::kWarps;
  static constexpr int kThreads = 32 * kWarps;

 public:
  __device__ __forceinline__ static void Prefetch(const DecodeParams& p, const PlanPiece& piece) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p.partial_begin + piece.request * p.head_blocks +
                                                  piece.head_block));
  }

  // `flag`: a word of shared memory.
  __device__ __forceinline__ PieceMerge(const DecodeParams& p, const PlanPiece& piece, int* flag)
      : p_(p),
        rows_{piece.request, piece.head_block, p.group_size << p.heads_log2},
        flag_(flag),
        empty_(piece.tokens == 0) {
    const int job = piece.request * p.head_blocks + piece.head_block;
    begin_ = p.partial_begin[job];
    count_ = p.partial_begin[job + 1] - begin_;
    done_ = p.done + job;
  }

  // By all threads that compute, after their parts of the partial result are written.
  __device__ __forceinline__ void Run() const {
    if (p_.merge_apart != 0 && !empty_) return;
    SynchroniseThreads(kThreads);
    if (count_ > 1) {
      if (threadIdx.x == 0) *flag_ = IsLast() ? 1 : 0;
      SynchroniseThreads(kThreads);
      if (*flag_ == 0) return;
    }
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) >> 5; row < rows_.columns; row += kWarps) {
      const MergedRow<kDim> merged(p_, rows_.columns, row, begin_, 1, empty_ ? 0 : count_);
      StoreOutput<kDim>(p_, rows_, row, merged.o, merged.lse);
    }
  }

 private:
  // Counts the piece; true for the one that completes the request, and the counter is 0 again.
  __device__ bool IsLast() const {
    FenceDevice();
    const auto most = static_cast<uint32_t>(count_ - 1);
    const bool last = atomicInc(done_, most) == most;
    FenceDevice();
    return last;
  }

  const DecodeParams& p_;
  OutputRows rows_;
  int* flag_;
  bool empty_;  // the one piece of a request without tokens
  int begin_, count_;
  uint32_t* done_;
};

}  // namespace oscar
