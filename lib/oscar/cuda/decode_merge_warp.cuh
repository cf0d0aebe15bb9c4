// What one warp does of the sum of partial results (see decode_merge.cuh). Device code.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/decode_merge_sum.cuh"
#include "oscar/cuda/decode_params.h"

namespace oscar {

// A warp takes items: some channels of one query head of one request, in units of four channels.
// Its partial results come in rounds, as many under way as the ring of MergeMemory has; a lane adds
// up the units that it copies. kUnitsLog2: units of an item. kShareLog2: warps of a block that
// share its partial results, a team. kOneItem: there is one for a team at most.
template <int kDim, int kUnitsLog2, int kShareLog2, bool kOneItem>
class MergeWarp {
  static constexpr int kSlices = kDim / (4 << kUnitsLog2);  // items of a row
  // Partial results of half a round, and those from one of the warp's rounds to the next.
  static constexpr int kGroups = 32 >> kUnitsLog2;
  static constexpr int kTurn = 2 * kGroups << kShareLog2;

 public:
  // `memories`: of the block's warps.
  __device__ MergeWarp(const DecodeParams& p, MergeMemory (&memories)[kMergeWarps])
      : p_(p), memories_(memories) {
    const uint32_t memory = SharedAddress(memories + (threadIdx.x >> 5));
    units_ = memory + static_cast<uint32_t>(Lane()) * 16;
    pairs_ = memory + 1024 + static_cast<uint32_t>(Group()) * 8;
    unit_ = static_cast<uint32_t>(Unit());
    PinLane(units_);
    PinLane(pairs_);
    PinLane(unit_);
    columns_ = p.group_size << p.plan->heads_log2;
    rows_ = p.plan->requests * p.kv_heads * p.group_size;
  }

  __device__ __forceinline__ void Run() {
    for (first_ = Team() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
         first_ < Shares(); first_ += (kOneItem ? 1 : 32) * Teams()) {
      ReadItems();
      items_ = min(32, (Shares() - first_ + Teams() - 1) / Teams());
      next_.item = 0;
      Locate();
      // The plan is older than the launches before, the partial results are not.
      if constexpr (kOneItem) {
        Pin(next_.o);
        Pin(next_.pairs);
      }
      WaitForPredecessors();
      if (!kOneItem) {
        AddItems();
      } else {
        if (count_ > kMergeRounds * kTurn) return AddItems();
        return AddAtOnce();
      }
    }
    WaitForPredecessors();
  }

 private:
  // Where the thread stands, worked out again at the end: the few registers have no room to keep it,
  // and memory would be far.
  struct Place {
    int warp, lane;
    __device__ __forceinline__ Place() {
      uint32_t thread = threadIdx.x;
      Pin(thread);
      warp = static_cast<int>(thread) >> 5;
      lane = static_cast<int>(thread) & 31;
    }
    // The only item of the warp's team.
    __device__ __forceinline__ int OneItem() const {
      uint32_t block = blockIdx.x;
      Pin(block);
      return (warp >> kShareLog2) * static_cast<int>(gridDim.x) + static_cast<int>(block);
    }
  };
  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) & 31; }
  // Warps that share an item's partial results, as a power of two, are a team.
  __device__ __forceinline__ static int Team() {
    return static_cast<int>(threadIdx.x) >> (5 + kShareLog2);
  }
  __device__ __forceinline__ static int Teams() {
    return static_cast<int>(gridDim.x) << (kMergeWarpsLog2 - kShareLog2);
  }
  // Of the warp in its team.
  __device__ __forceinline__ static int Member() {
    return (static_cast<int>(threadIdx.x) >> 5) & ((1 << kShareLog2) - 1);
  }
  __device__ __forceinline__ int Shares() const { return rows_ * kSlices; }
  __device__ __forceinline__ static int Unit() { return Lane() & ((1 << kUnitsLog2) - 1); }
  __device__ __forceinline__ static int Group() { return Lane() >> kUnitsLog2; }
  // Of the warp's item number `item`.
  __device__ __forceinline__ int Index(int item) const {
    return first_ + item * Teams();
  }

  // A lane keeps where one item's partial results are, of those that are the warp's.
  __device__ __forceinline__ void ReadItems() {
    const int row = Index(kOneItem ? 0 : Lane()) / kSlices;
    first_row_ = 0;
    count_ = 0;
    if (row >= rows_) return;
    const int job = row / columns_;
    const int begin = p_.partial_begin[job];
    // The one piece of a request without tokens has no result.
    count_ = p_.pieces[p_.blocks + begin].tokens == 0 ? 0 : p_.partial_begin[job + 1] - begin;
    first_row_ = static_cast<uint32_t>(begin) * columns_ + (row - job * columns_);
    const int before = Member() * 2 * kGroups;
    count_ -= before;
    first_row_ += static_cast<uint32_t>(before * columns_);
  }

  template <typename Number>
  __device__ __forceinline__ static Number OfItem(Number x, int item) {
    return kOneItem ? x : __shfl_sync(~0U, x, item);
  }
  // Begins an item of the copies, `next_.item`.
  __device__ __forceinline__ void Locate() {
    const uint32_t row = OfItem(first_row_, next_.item) + Group() * columns_;
    const int slice = Index(next_.item) % kSlices;
    next_.o = AddressOf(
        reinterpret_cast<const char*>(p_.partial_o + (((slice << kUnitsLog2) + Unit()) << 2)), row,
        4 * kDim);
    next_.pairs = AddressOf(reinterpret_cast<const char*>(p_.partial_sums), row, 8);
    next_.left = OfItem(count_, next_.item) - Group();
  }
  // Copies a round of the item.
  __device__ __forceinline__ void CopyRound() {
    const uint32_t half = static_cast<uint32_t>(kGroups * columns_);
    const bool pairs = unit_ == 0;
    const uint32_t units = units_ + next_.slot;
    const uint32_t to_pairs = pairs_ + next_.slot;
    CopyAsync<16>(units, next_.o, next_.left > 0);
    CopyAsync<16>(units + 512, AddressOf(next_.o, half, 4 * kDim), next_.left > kGroups);
    if (pairs) CopyAsync<8>(to_pairs, next_.pairs, next_.left > 0);
    if (pairs) {
      CopyAsync<8>(to_pairs + kGroups * 8, AddressOf(next_.pairs, half, 8), next_.left > kGroups);
    }
    const uint32_t turn = static_cast<uint32_t>(kTurn * columns_);
    next_.o = AddressOf(next_.o, turn, 4 * kDim);
    next_.pairs = AddressOf(next_.pairs, turn, 8);
    next_.left -= kTurn;
    next_.slot = Next(next_.slot);
  }
  // Begins the next round, of the next item where this one is done.
  __device__ __forceinline__ void Issue() {
    if (kOneItem ? next_.left + Group() > 0 : next_.item < items_) {
      CopyRound();
      if (!kOneItem && next_.left + Group() <= 0 && ++next_.item < items_) Locate();
    } else {
      next_.slot = Next(next_.slot);
    }
    CommitCopies();
  }
  __device__ __forceinline__ static uint32_t Next(uint32_t slot) {
    return slot + sizeof(MergeMemory::Round) == sizeof(MergeMemory)
               ? 0
               : slot + static_cast<uint32_t>(sizeof(MergeMemory::Round));
  }

  // `left`: partial results of the item from the lane's first of the round on.
  __device__ __forceinline__ void AddRound(uint32_t slot, int left, MergeSum& sum) const {
    float2 pair[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      pair[k] = LoadShared2(pairs_ + slot + k * kGroups * 8);
      if (k * kGroups >= left) pair[k].x = -INFINITY;
    }
    const float base = sum.Raise(fmaxf(sum.max, fmaxf(pair[0].x, pair[1].x)));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      sum.Add(Exp2(pair[k].x - base), pair[k].y, LoadShared4(units_ + slot + k * 512));
    }
  }

  // Adds the sums of the warps of a team, which has one item, up in its first one; false for others.
  __device__ __forceinline__ bool AddTeam(MergeSum& sum) const {
    WaitCopies<0>();
    constexpr int kMembers = 1 << kShareLog2;
    const Place here;
    MergeMemory* const mine = memories_ + here.warp;
    mine->rounds[0].units[0][here.lane] = sum.o;
    if (here.lane == 0) mine->rounds[0].pairs[0] = make_float2(sum.max, sum.weight);
    SynchroniseSome(1 + (here.warp >> kShareLog2), 32 << kShareLog2);
    if ((here.warp & (kMembers - 1)) > 0) return false;
    float2 pairs[kMembers];
    float max = sum.max;
#pragma unroll
    for (int i = 1; i < kMembers; ++i) {
      pairs[i] = mine[i].rounds[0].pairs[0];
      max = fmaxf(max, pairs[i].x);
    }
    const float base = sum.Raise(max);
#pragma unroll
    for (int i = 1; i < kMembers; ++i) {
      sum.Add(Exp2(pairs[i].x - base), pairs[i].y, mine[i].rounds[0].units[0][here.lane]);
    }
    return true;
  }

  __device__ __forceinline__ void AddItems() {
#pragma unroll 1
    for (int i = 0; i < kMergeRounds; ++i) Issue();
    uint32_t slot = next_.slot;
#pragma unroll 1
    for (int item = 0; item < (kOneItem ? 1 : items_); ++item) {
      MergeSum sum;
      int left = OfItem(count_, item);
#pragma unroll 1
      for (bool more = !kOneItem || left > 0; more; more = left > 0) {
        WaitCopies<kMergeRounds - 1>();
        __syncwarp();
        AddRound(slot, left - Group(), sum);
        __syncwarp();
        Issue();
        slot = Next(slot);
        left -= kTurn;
      }
      Leave(item, sum);
    }
  }

  // The only item, whose partial results all fit the ring.
  __device__ __forceinline__ void AddAtOnce() {
#pragma unroll 1
    for (int left = count_; left > 0; left -= kTurn) CopyRound();
    CommitCopies();
    WaitCopies<0>();
    __syncwarp();
    MergeSum sum;
    uint32_t slot = 0;
    int mine = count_ - Group();
#pragma unroll 1
    for (int left = count_; left > 0; left -= kTurn) {
      AddRound(slot, mine, sum);
      mine -= kTurn;
      slot = Next(slot);
    }
    Leave(0, sum);
  }

  // What the lanes have of an item, and the warps of a team.
  __device__ __forceinline__ void Leave(int item, MergeSum& sum) const {
    sum.AddLanes<(1 << kUnitsLog2)>();
    if constexpr (kShareLog2 > 0) {
      if (!AddTeam(sum)) return;
    }
    Store(item, sum);
  }

  __device__ __forceinline__ void Store(int item, const MergeSum& sum) const {
    const Place here;
    const int index = kOneItem ? here.OneItem() : Index(item);
    const int64_t row = index / kSlices;
    const int slice = index % kSlices;
    const bool some = sum.weight != 0;  // or is no number
    const float inverse = some ? Reciprocal(sum.weight) : 0.0F;
    if (here.lane >> kUnitsLog2 == 0) {
      const int unit = here.lane & ((1 << kUnitsLog2) - 1);
      const int64_t to = row * kDim + (((slice << kUnitsLog2) + unit) << 2);
      const float4 o = {sum.o.x * inverse, sum.o.y * inverse, sum.o.z * inverse, sum.o.w * inverse};
      if (p_.o_is_bf16 != 0) {
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p_.o) + to) =
            make_uint2(PackBFloat16(o.x, o.y), PackBFloat16(o.z, o.w));
      } else {
        *reinterpret_cast<float4*>(static_cast<float*>(p_.o) + to) = o;
      }
    }
    if (p_.lse != nullptr && slice == 0 && here.lane == 0) {
      p_.lse[row] = some ? (sum.max + __log2f(sum.weight)) * 0.6931471805599453F : -INFINITY;
    }
  }

  const DecodeParams& p_;
  MergeMemory (&memories_)[kMergeWarps];
  int columns_, rows_;
  uint32_t first_row_;  // of the first partial result
  int count_;
  int first_ = 0, items_ = 0;
  uint32_t units_, pairs_;  // the lane's in the first round
  uint32_t unit_;           // of the item, the lane's
  // The round copied next.
  struct {
    const char *o, *pairs;
    int left;  // of the item's partial results from the lane's first one on
    int item;
    uint32_t slot = 0;
  } next_;
};

}  // namespace oscar
