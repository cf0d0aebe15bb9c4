// The merge kernel and the host side of LaunchDecode.
#include "oscar/cuda/decode.h"

#include <bit>
#include <cmath>
#include <string>

#include "oscar/cuda/cuda_error.h"
#include "oscar/cuda/decode_launch.h"
#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {
namespace {

// Rows of partial results that a merge block reads at once, dim / 4 threads each: many where a
// request is cut into many pieces, few where there are many requests. Any plan works with either.
constexpr int kFewLanes = 8;
constexpr int ManyLanes(int dim) { return dim == 256 ? 16 : 32; }
constexpr int kMergeUnroll = 5;

struct RunningSum {
  float max = -INFINITY;
  float weight = 0;
  float4 o = {0, 0, 0, 0};

  __device__ void Add(float lse, float4 x) {
    if (lse == -INFINITY) return;
    const float top = fmaxf(max, lse);
    const float old = exp2f(max - top), fresh = exp2f(lse - top);
    weight = weight * old + fresh;
    o.x = o.x * old + x.x * fresh;
    o.y = o.y * old + x.y * fresh;
    o.z = o.z * old + x.z * fresh;
    o.w = o.w * old + x.w * fresh;
    max = top;
  }
};

// out[j] = sum_d o[d] R[j, d]: one warp per j in turn, fixed order of the sum.
template <int kDim, int kThreads>
__device__ void RotateBack(const float* o, const uint16_t* rotation, float* out) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  for (int j = static_cast<int>(threadIdx.x) >> 5; j < kDim; j += kThreads / 32) {
    float sum = 0;
#pragma unroll
    for (int d = 2 * lane; d < kDim; d += 64) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(rotation + j * kDim + d);
      sum += o[d] * LowBFloat16(pair) + o[d + 1] * HighBFloat16(pair);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    if (lane == 0) out[j] = sum;
  }
}

// One block per (query head, request): o = sum_i 2^(lse_i - M) o_i / sum_i 2^(lse_i - M).
template <int kDim, int kLanes>
__global__ void __launch_bounds__(kDim / 4 * kLanes)
    MergeKernel(const __grid_constant__ MergeParams p) {
  constexpr int kQuads = kDim / 4;
  constexpr int kThreads = kQuads * kLanes;
  static_assert(kThreads >= kDim && kThreads <= 1024);
  __shared__ float shared_max[kLanes], shared_weight[kLanes], shared_factor[kLanes];
  __shared__ float4 shared_o[kLanes][kQuads];
  __shared__ float result[2][kDim];
  ReleaseSuccessors();
  const int tid = static_cast<int>(threadIdx.x);
  const int q_head = static_cast<int>(blockIdx.x), request = static_cast<int>(blockIdx.y);
  const int head = q_head / p.group_size;
  const int block = head >> p.heads_log2;
  const int columns = p.group_size << p.heads_log2;
  const int row = (head & ((1 << p.heads_log2) - 1)) * p.group_size + q_head % p.group_size;
  const int begin = p.partial_begin[request * p.head_blocks + block];
  const int end = p.partial_begin[request * p.head_blocks + block + 1];
  const int lane = tid / kQuads, quad = tid % kQuads;
  WaitForPredecessors();  // the plan is older than that

  RunningSum run;
  for (int i = begin + lane; i < end; i += kLanes * kMergeUnroll) {
    float lse[kMergeUnroll];
    float4 o[kMergeUnroll];
#pragma unroll
    for (int u = 0; u < kMergeUnroll; ++u) {
      const int at = i + u * kLanes;
      const int64_t from = static_cast<int64_t>(at < end ? at : i) * columns + row;
      lse[u] = at < end ? p.partial_lse[from] : -INFINITY;
      o[u] = *reinterpret_cast<const float4*>(p.partial_o + from * kDim + 4 * quad);
    }
#pragma unroll
    for (int u = 0; u < kMergeUnroll; ++u) run.Add(lse[u], o[u]);
  }
  if (quad == 0) {
    shared_max[lane] = run.max;
    shared_weight[lane] = run.weight;
  }
  shared_o[lane][quad] = run.o;
  __syncthreads();
  // One warp turns maxima and weights into factors that add up to the merged row.
  if (tid < 32) {
    const float max = tid < kLanes ? shared_max[tid] : -INFINITY;
    float top = max;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
    const float factor = max > -INFINITY ? exp2f(max - top) : 0.0F;
    float weight = tid < kLanes ? factor * shared_weight[tid] : 0.0F;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) weight += __shfl_xor_sync(~0U, weight, step);
    if (tid < kLanes) shared_factor[tid] = weight > 0 ? factor / weight : 0.0F;
    if (tid == 0 && p.lse != nullptr) {
      const int64_t at = static_cast<int64_t>(request) * p.q_heads + q_head;
      p.lse[at] = weight > 0 ? (top + log2f(weight)) * 0.6931471805599453F : -INFINITY;
    }
  }
  __syncthreads();
  if (tid < kDim) {
    float o = 0;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      o += shared_factor[i] * reinterpret_cast<const float*>(shared_o[i])[tid];
    }
    result[0][tid] = o;
  }
  const float* final = result[0];
  __syncthreads();
  if (p.v_rotation != nullptr) {
    const int matrix = p.rotation_per_head != 0 ? head : 0;
    RotateBack<kDim, kThreads>(result[0], p.v_rotation + static_cast<int64_t>(matrix) * kDim * kDim,
                               result[1]);
    final = result[1];
    __syncthreads();
  }
  if (tid < kDim) {
    const int64_t at = (static_cast<int64_t>(request) * p.q_heads + q_head) * kDim + tid;
    if (p.o_is_bf16 != 0) {
      reinterpret_cast<__nv_bfloat16*>(p.o)[at] = __float2bfloat16_rn(final[tid]);
    } else {
      reinterpret_cast<float*>(p.o)[at] = final[tid];
    }
  }
}

template <int kDim, int kLanes>
cudaError_t LaunchMergeInstance(const MergeParams& params, int64_t requests, cudaStream_t stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(params.q_heads), static_cast<unsigned>(requests));
  config.blockDim = dim3(kDim / 4 * kLanes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, MergeKernel<kDim, kLanes>, params);
}

template <int kDim>
cudaError_t LaunchMerge(const MergeParams& params, int64_t requests, bool many,
                        cudaStream_t stream) {
  return many ? LaunchMergeInstance<kDim, ManyLanes(kDim)>(params, requests, stream)
              : LaunchMergeInstance<kDim, kFewLanes>(params, requests, stream);
}

void CheckInputs(const DecodeWorkspace& workspace, const DecodeInputs& in,
                 const DecodeOutputs& out) {
  CheckSlotType(in.quantised_slots, "the slot list of the quantised tier");
  CheckSlotType(in.row_slots, "the slot list of the bf16 tier");
  if (out.o_type != DType::kF32 && out.o_type != DType::kBF16) {
    throw Error(ErrorCode::kUnsupported, "an attention output of type " +
                                             std::string(DTypeName(out.o_type)) +
                                             " is not supported: f32 and bf16 are");
  }
  if (in.q == nullptr || out.o == nullptr) {
    throw Error(ErrorCode::kUsage, "decode attention needs queries and an output");
  }
  bool quantised = false, rows = false;
  for (const PlanPiece& piece : workspace.plan().pieces) {
    (piece.tier == Tier::kQuantised ? quantised : rows) = true;
  }
  const QuantisedCache& c = in.quantised;
  if (quantised && (c.k_codes == nullptr || c.v_codes == nullptr || c.k_scales == nullptr ||
                    c.v_scales == nullptr || in.quantised_slots.data == nullptr)) {
    throw Error(ErrorCode::kUsage, "the plan has quantised tokens, but their cache is missing");
  }
  if (rows && (in.rows.k == nullptr || in.rows.v == nullptr || in.row_slots.data == nullptr)) {
    throw Error(ErrorCode::kUsage, "the plan has bf16 tokens, but their cache is missing");
  }
}

const char* Bytes(const void* pointer) { return static_cast<const char*>(pointer); }

int SlotLog2(const SlotList& list) { return list.type == DType::kI64 ? 3 : 2; }

DecodeParams MakeParams(const DecodeWorkspace& workspace, const DecodeInputs& in) {
  const DecodeShape& shape = workspace.shape();
  const CacheShape& cache = shape.cache;
  const auto heads = static_cast<uint64_t>(HeadsPerBlock(shape));
  DecodeParams p{};
  p.pieces = workspace.pieces();
  p.block_begin = workspace.block_begin();
  p.k_codes = Bytes(in.quantised.k_codes);
  p.v_codes = Bytes(in.quantised.v_codes);
  p.k_scales = Bytes(in.quantised.k_scales);
  p.v_scales = Bytes(in.quantised.v_scales);
  p.k_rows = Bytes(in.rows.k);
  p.v_rows = Bytes(in.rows.v);
  p.code_stride = static_cast<uint32_t>(cache.heads * cache.CodeBytes());
  p.scale_stride = static_cast<uint32_t>(cache.heads * cache.ScaleBytes());
  p.row_stride = static_cast<uint32_t>(cache.heads * cache.dim * 2);
  p.quantised_slots = Bytes(in.quantised_slots.data);
  p.row_slots = Bytes(in.row_slots.data);
  p.q = reinterpret_cast<const uint16_t*>(in.q);
  p.partial_o = workspace.partial_o();
  p.partial_lse = workspace.partial_lse();
  p.logit_scale = in.logit_scale * 1.4426950408889634F;
  p.kv_heads = static_cast<int32_t>(cache.heads);
  p.group_size = static_cast<int32_t>(shape.GroupSize());
  p.heads_log2 = std::countr_zero(heads);
  p.groups = static_cast<int32_t>(cache.groups);
  p.scale_row_log2 = std::countr_zero(heads * static_cast<uint64_t>(cache.ScaleBytes()));
  p.scale_kind = cache.scale_type == DType::kF32   ? ScaleKind::kF32
                 : cache.scale_type == DType::kF16 ? ScaleKind::kF16
                                                   : ScaleKind::kBF16;
  p.quantised_slot_log2 = SlotLog2(in.quantised_slots);
  p.row_slot_log2 = SlotLog2(in.row_slots);
  return p;
}

MergeParams MakeMergeParams(const DecodeWorkspace& workspace, const DecodeInputs& in,
                            const DecodeOutputs& out) {
  const DecodeShape& shape = workspace.shape();
  MergeParams p{};
  p.partial_o = workspace.partial_o();
  p.partial_lse = workspace.partial_lse();
  p.partial_begin = workspace.partial_begin();
  p.o = out.o;
  p.lse = out.lse;
  p.v_rotation = reinterpret_cast<const uint16_t*>(in.v_rotation);
  p.rotation_per_head = in.v_rotation_per_head ? 1 : 0;
  p.o_is_bf16 = out.o_type == DType::kBF16 ? 1 : 0;
  p.q_heads = static_cast<int32_t>(shape.q_heads);
  p.group_size = static_cast<int32_t>(shape.GroupSize());
  p.heads_log2 = std::countr_zero(static_cast<uint64_t>(HeadsPerBlock(shape)));
  p.head_blocks = static_cast<int32_t>(workspace.plan().head_blocks);
  return p;
}

}  // namespace

void LaunchDecode(const DecodeWorkspace& workspace, const DecodeInputs& inputs,
                  const DecodeOutputs& outputs, Stream stream) {
  const DecodePlan& plan = workspace.plan();
  if (plan.blocks == 0) {
    throw Error(ErrorCode::kUsage, "decode attention was launched before a plan was made");
  }
  if (plan.requests == 0) return;
  CheckInputs(workspace, inputs, outputs);
  const DecodeParams params = MakeParams(workspace, inputs);
  const MergeParams merge = MakeMergeParams(workspace, inputs, outputs);
  const auto on = static_cast<cudaStream_t>(stream);
  const int slot_bytes = 1 << std::max(params.quantised_slot_log2, params.row_slot_log2);
  const int64_t dim = workspace.shape().cache.dim;
  const auto attend = dim == 64 ? LaunchDecode64 : dim == 128 ? LaunchDecode128 : LaunchDecode256;
  CheckCuda(attend(params, plan.blocks, slot_bytes, on), "launch of the decode attention kernel");
  const auto add = dim == 64 ? LaunchMerge<64> : dim == 128 ? LaunchMerge<128> : LaunchMerge<256>;
  const bool many = plan.partials() > 2 * kFewLanes * plan.requests * plan.head_blocks;
  CheckCuda(add(merge, plan.requests, many, on), "launch of the decode merge kernel");
}

}  // namespace oscar
