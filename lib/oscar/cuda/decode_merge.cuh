// Partial results in memory and their sum. Device code.
//
// The partial results of one request and block of heads are added up by whoever finishes last, told
// by a counter: no second kernel, and the order of the sum is that of the tokens, whoever adds.
// Where a plan cuts a request into groups of kClusterBlocks pieces, the blocks of a cluster first
// add theirs up together, each for some of the query heads.
#pragma once

#include "oscar/cuda/decode_ring.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

// Query heads of one request and block of heads.
struct OutputRows {
  int request, head_block, columns;
  __device__ OutputRows(const DecodeParams& p, const PlanPiece& piece)
      : request(piece.request),
        head_block(piece.head_block),
        columns(p.group_size << p.heads_log2) {}
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

// What a warp adds up for one row: o = sum_i 2^(lse_i - M) o_i / sum_i 2^(lse_i - M).
template <int kDim>
struct MergedRow {
  static constexpr int kPer = kDim / 32;
  // Rows under way at once.
  static constexpr int kBatch = 8;
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
      const float mine = lane < here ? __ldcg(p.partial_lse + at(lane)) : -INFINITY;
      float top = fmaxf(max, mine);
#pragma unroll
      for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, s));
      const float factor = mine > -INFINITY ? Exp2(mine - top) : 0.0F;
      const float old = max > -INFINITY ? Exp2(max - top) : 0.0F;
      float sum = factor;
#pragma unroll
      for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0U, sum, s);
      weight = weight * old + sum;
      max = top;
#pragma unroll
      for (int i = 0; i < kPer; ++i) o.x[i] *= old;
#pragma unroll 1
      for (int i = 0; i < here; i += kBatch) {
        // Past the end: the last one again, at a factor of zero.
        LaneRow<kDim> part[kBatch];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          part[u] = LaneRow<kDim>::Load(p.partial_o + at(min(i + u, here - 1)) * kDim);
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const float f = __shfl_sync(~0U, factor, i + u);
#pragma unroll
          for (int j = 0; j < kPer; ++j) o.x[j] = fmaf(f, part[u].x[j], o.x[j]);
        }
      }
    }
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

// Adds partial results of a piece's request up once they are all there. Called by all threads that
// compute, after their partial results are written.
template <int kDim, int kThreads>
class PieceMerge {
  static constexpr int kWarps = kThreads / 32;

 public:
  __device__ PieceMerge(const DecodeParams& p, const PlanPiece& piece)
      : p_(p), rows_(p, piece), partial_(piece.partial), empty_(piece.tokens == 0) {
    const int job = piece.request * p.head_blocks + piece.head_block;
    begin_ = p.partial_begin[job];
    count_ = p.partial_begin[job + 1] - begin_;
    arrivals_ = p.arrivals + static_cast<int64_t>(job) * kClusterBlocks;
    grouped_ = piece.group != 0 && ClusterSize() == kClusterBlocks;
  }

  __device__ __forceinline__ void Run(uint32_t cluster_barrier, uint32_t& cluster_parity,
                                      int* shared_flag) const {
    SynchroniseThreads(kThreads);
    // Rows row, row + row_step, ... from `count` partials from `first` on.
    int row = 0, row_step = 1, first = begin_, step = 1, count = count_;
    bool last = true;
    if (empty_) {
      count = 0;
    } else if (grouped_) {
      // The cluster meets; then block r takes rows r, r + kClusterBlocks, ...
      row = static_cast<int>(ClusterRank());
      row_step = kClusterBlocks;
      first = partial_ - row;
      count = kClusterBlocks;
      last = count_ == kClusterBlocks;
      if (threadIdx.x < kClusterBlocks) {
        __threadfence();
        ArriveInCluster(cluster_barrier, threadIdx.x);
      }
      WaitInCluster(cluster_barrier, cluster_parity);
      cluster_parity ^= 1;
    } else if (count_ > 1 && !IsLast(arrivals_, count_, shared_flag)) {
      return;
    }
#pragma unroll 1
    for (;;) {
      AddRows(row, row_step, first, step, count, last);
      if (last) return;
      SynchroniseThreads(kThreads);
      if (!IsLast(arrivals_ + row, count_ / kClusterBlocks, shared_flag)) return;
      first = begin_;
      step = kClusterBlocks;
      count = count_ / kClusterBlocks;
      last = true;
    }
  }

 private:
  __device__ static int Warp() { return static_cast<int>(threadIdx.x) >> 5; }
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) & 31; }

  // Counts this block; true in the one that completes `wanted`, which sees what the others wrote
  // and leaves the counter as it was at first.
  __device__ bool IsLast(int32_t* counter, int wanted, int* shared_flag) const {
    if (threadIdx.x == 0) {
      __threadfence();
      const bool last = atomicAdd(counter, 1) == wanted - 1;
      if (last) {
        *counter = 0;
        __threadfence();
      }
      *shared_flag = last ? 1 : 0;
    }
    SynchroniseThreads(kThreads);
    const bool last = *shared_flag != 0;
    SynchroniseThreads(kThreads);
    return last;
  }
  // Adds `count` partials first, first + step, ... up, to results or to partial `first`.
  __device__ __forceinline__ void AddRows(int first_row, int row_step, int first, int step,
                                          int count, bool last) const {
#pragma unroll 1
    for (int row = first_row + row_step * Warp(); row < rows_.columns; row += row_step * kWarps) {
      const MergedRow<kDim> merged(p_, rows_.columns, row, first, step, count);
      if (last) {
        StoreOutput<kDim>(p_, rows_, row, merged.o, merged.lse);
      } else {
        const int64_t at = static_cast<int64_t>(first) * rows_.columns + row;
        merged.o.Store(p_.partial_o + at * kDim);
        if (Lane() == 0) p_.partial_lse[at] = merged.lse;
      }
    }
  }

  const DecodeParams& p_;
  OutputRows rows_;
  int partial_, begin_, count_;
  bool empty_;  // the one piece of a request without tokens
  int32_t* arrivals_;
  bool grouped_;
};

}  // namespace oscar
