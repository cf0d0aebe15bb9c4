// Partial results in memory and their sum. Device code.
//
// Every piece of a request and block of heads leaves a partial result in memory and counts itself
// as done. The rows (query heads) of the sum are dealt out over the blocks that hold the pieces: a
// block with nothing else to do waits for the others and adds its rows up. It waits only once all
// blocks of the launch have started, so that the ones it waits for cannot be waiting for its place;
// otherwise it leaves its rows to the block that is done last. The order of a sum is that of the
// tokens, whoever adds it up.
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
        if (i > 0) {
#pragma unroll
          for (int u = 0; u < kBatch; ++u) {
            part[u] = LaneRow<kDim>::Load(p.partial_o + at(min(i + u, here - 1)) * kDim);
          }
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

template <typename Traits, int kDim>
class PieceMerge {
  static constexpr int kWarps = Traits::kWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kPer = kDim / 32;
  using Bits = unsigned long long;

 public:
  // Once per block, by one thread, when the launches before are done.
  __device__ __forceinline__ static void CountStart(const DecodeParams& p) {
    atomicInc(p.started, gridDim.x - 1);
  }
  __device__ __forceinline__ static void Prefetch(const DecodeParams& p, const PlanPiece& piece) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(
        p.partial_begin + piece.request * p.head_blocks + piece.head_block));
  }

  __device__ __forceinline__ PieceMerge(const DecodeParams& p, const PlanPiece& piece, Bits* left_rows,
                                        char* area)
      : p_(p),
        rows_(p, piece),
        left_rows_(left_rows),
        area_(reinterpret_cast<float*>(area)),
        empty_(piece.tokens == 0),
        started_(threadIdx.x == 0 ? ReadCounter(p.started) : 0) {
    const int job = piece.request * p.head_blocks + piece.head_block;
    begin_ = p.partial_begin[job];
    count_ = p.partial_begin[job + 1] - begin_;
    piece_ = piece.partial - begin_;
    job_ = p.jobs + job;
  }

  // By all threads that compute, after their parts of the partial result are written. `last`: the
  // block has no other piece.
  __device__ __forceinline__ void Run(bool last) const {
    SynchroniseThreads(kThreads);
    Bits mine = OwnRows();
    if (count_ > 1) {
      if (threadIdx.x == 0) *left_rows_ = CountDone(last, mine);
      SynchroniseThreads(kThreads);
      mine = *left_rows_;
    }
#pragma unroll 1
    while (mine != 0) mine = AddRows(mine);
  }

 private:
  __device__ static int Warp() { return static_cast<int>(threadIdx.x) >> 5; }

  // Rows of this piece, as bits: piece_, piece_ + count_, ... (at most 64 rows).
  __device__ Bits OwnRows() const {
    Bits rows = 0;
    for (int row = piece_; row < rows_.columns; row += count_) rows |= Bits{1} << row;
    return rows;
  }

  // The rows that this block adds up, once their partial results are there.
  __device__ Bits CountDone(bool last, Bits mine) const {
    const bool waits = last && started_ == 0;
    if (!waits && mine != 0) atomicOr(&job_->rows, mine);
    FenceDevice();
    const bool all = atomicInc(&job_->done, static_cast<uint32_t>(count_ - 1)) ==
                     static_cast<uint32_t>(count_ - 1);
    Bits rows = waits ? mine : 0;
    if (all) {
      FenceDevice();
      rows |= atomicExch(&job_->rows, Bits{0});
    } else if (rows != 0) {
      while (ReadCounter(&job_->done) != 0) {
      }
    }
    return rows;
  }

  // Adds some of `rows` up; returns the rest. As many warps take parts of a row as the number of
  // partial results asks for, eight each at least.
  __device__ __forceinline__ Bits AddRows(Bits rows) const {
    const int partials = empty_ ? 0 : count_;
    int ways = 1;
    while (ways < kWarps && 8 * ways < partials) ways *= 2;
    const int way = Warp() & (ways - 1), place = Warp() / ways;
    // The row of the warp's place among those that are left, -1 where there is none.
    int row = -1;
    for (int i = 0; i < kWarps / ways && rows != 0; ++i) {
      const int next = __ffsll(static_cast<long long>(rows)) - 1;
      rows &= rows - 1;
      if (i == place) row = next;
    }
    if (row >= 0) {
      const MergedRow<kDim> part(p_, rows_.columns, row, begin_ + way, ways,
                                 (partials - way + ways - 1) / ways);
      if (ways == 1) {
        StoreOutput<kDim>(p_, rows_, row, part.o, part.lse);
      } else {
        float* const to = area_ + Warp() * (kDim + 4);
        part.o.Store(to);
        if ((threadIdx.x & 31) == 0) to[kDim] = part.lse;
      }
    }
    if (ways > 1) {
      SynchroniseThreads(kThreads);
      if (row >= 0 && way == 0) AddWays(row, ways);
      SynchroniseThreads(kThreads);
    }
    return rows;
  }
  // The parts of a row that warps Warp() ... left in shared memory.
  __device__ __forceinline__ void AddWays(int row, int ways) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const float* const parts = area_ + Warp() * (kDim + 4);
    const float mine = lane < ways ? parts[lane * (kDim + 4) + kDim] : -INFINITY;
    float max = mine;
#pragma unroll
    for (int s = 16; s > 0; s /= 2) max = fmaxf(max, __shfl_xor_sync(~0U, max, s));
    const float factor = mine > -INFINITY ? Exp2(mine - max) : 0.0F;
    float weight = factor;
#pragma unroll
    for (int s = 16; s > 0; s /= 2) weight += __shfl_xor_sync(~0U, weight, s);
    LaneRow<kDim> o;
#pragma unroll
    for (int j = 0; j < kPer; ++j) o.x[j] = 0;
#pragma unroll 4
    for (int i = 0; i < ways; ++i) {
      const float f = __shfl_sync(~0U, factor, i);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        o.x[j] = fmaf(f, parts[i * (kDim + 4) + lane * kPer + j], o.x[j]);
      }
    }
    const float inverse = weight > 0 ? __frcp_rn(weight) : 0.0F;
#pragma unroll
    for (int j = 0; j < kPer; ++j) o.x[j] *= inverse;
    StoreOutput<kDim>(p_, rows_, row, o, weight > 0 ? max + log2f(weight) : -INFINITY);
  }

  const DecodeParams& p_;
  OutputRows rows_;
  Bits* left_rows_;
  float* area_;
  bool empty_;  // the one piece of a request without tokens
  uint32_t started_;
  int begin_, count_, piece_;
  DecodeParams::Job* job_;
};

}  // namespace oscar
