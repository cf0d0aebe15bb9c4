// The kernels behind the attention and the host side of LaunchDecode.
#include "oscar/cuda/decode.h"

#include <bit>
#include <cmath>
#include <string>

#include "oscar/cuda/cuda_error.h"
#include "oscar/cuda/decode_launch.h"
#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/decode_merge.cuh"
#include "oscar/cuda/decode_rotate.cuh"
#include "oscar/cuda/overlap_launch.cuh"

namespace oscar {
namespace {

template <int kDim>
cudaError_t LaunchMerge(const DecodeParams& params, cudaStream_t stream) {
  const auto kernel = MergeKernel<kDim>;
  // The same division of the memory on chip as for the attention kernel, to fit beside it.
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (status != cudaSuccess) return status;
  return LaunchOverlapping(kernel, params.blocks, 32 * kMergeWarps, 0, stream, params);
}

template <int kDim>
cudaError_t LaunchRotate(const DecodeParams& params, cudaStream_t stream) {
  return LaunchOverlapping(RotateKernel<kDim>, params.blocks, 32 * kRotateWarps, 0, stream, params);
}

const char* Bytes(const void* pointer) { return static_cast<const char*>(pointer); }

int SlotLog2(const SlotList& list) { return list.type == DType::kI64 ? 3 : 2; }

DecodeParams MakeParams(const DecodeWorkspace& workspace, const DecodeInputs& in,
                        const DecodeOutputs& out) {
  const DecodeShape& shape = workspace.shape();
  const CacheShape& cache = shape.cache;
  DecodeParams p{};
  p.pieces = workspace.pieces();
  p.partial_begin = workspace.partial_begin();
  p.plan = workspace.plan_head();
  p.k_codes = Bytes(in.quantised.k_codes);
  p.v_codes = Bytes(in.quantised.v_codes);
  p.k_scales = Bytes(in.quantised.k_scales);
  p.v_scales = Bytes(in.quantised.v_scales);
  p.k_rows = Bytes(in.rows.k);
  p.v_rows = Bytes(in.rows.v);
  p.quantised_slots = Bytes(in.quantised_slots.data);
  p.row_slots = Bytes(in.row_slots.data);
  p.q = reinterpret_cast<const uint16_t*>(in.q);
  p.partial_o = workspace.partial_o();
  p.partial_sums = workspace.partial_sums();
  p.o = out.o;
  p.lse = out.lse;
  p.o_is_bf16 = out.o_type == DType::kBF16 ? 1 : 0;
  p.v_rotation = reinterpret_cast<const uint16_t*>(in.v_rotation);
  p.unrotated = workspace.unrotated();
  p.rotation_per_head = in.v_rotation_per_head ? 1 : 0;
  p.code_stride = static_cast<uint32_t>(cache.heads * cache.CodeBytes());
  p.scale_stride = static_cast<uint32_t>(cache.heads * cache.ScaleBytes());
  p.row_stride = static_cast<uint32_t>(cache.heads * cache.dim * 2);
  p.blocks = static_cast<int32_t>(workspace.blocks());
  p.kv_heads = static_cast<int32_t>(cache.heads);
  p.group_size = static_cast<int32_t>(shape.GroupSize());
  p.heads_log2 = std::countr_zero(static_cast<uint64_t>(MostHeadsPerBlock(shape)));
  p.groups = static_cast<int32_t>(cache.groups);
  p.head_scale_log2 = std::countr_zero(static_cast<uint64_t>(cache.ScaleBytes()));
  p.scale_kind = cache.scale_type == DType::kF32   ? ScaleKind::kF32
                 : cache.scale_type == DType::kF16 ? ScaleKind::kF16
                                                   : ScaleKind::kBF16;
  p.logit_scale = in.logit_scale * 1.4426950408889634F;
  p.quantised_slot_log2 = SlotLog2(in.quantised_slots);
  p.row_slot_log2 = SlotLog2(in.row_slots);
  p.quantised_early = in.quantised_settled ? 1 : 0;
  p.rows_early = in.rows_settled ? 1 : 0;
  return p;
}

}  // namespace

void LaunchDecode(const DecodeWorkspace& workspace, const DecodeInputs& inputs,
                  const DecodeOutputs& outputs, Stream stream) {
  const DecodePlan& plan = workspace.plan();
  if (plan.blocks == 0) {
    throw Error(ErrorCode::kUsage, "decode attention was launched before a plan was made");
  }
  CheckDecodeTensors(plan, inputs, outputs);
  const DecodeParams params = MakeParams(workspace, inputs, outputs);
  const int64_t dim = workspace.shape().cache.dim;
  const auto attend = dim == 64 ? LaunchDecode64 : dim == 128 ? LaunchDecode128 : LaunchDecode256;
  const auto on = static_cast<cudaStream_t>(stream);
  CheckCuda(attend(params, on), "launch of the decode attention kernel");
  const auto add = dim == 64 ? LaunchMerge<64> : dim == 128 ? LaunchMerge<128> : LaunchMerge<256>;
  if (inputs.v_rotation == nullptr) {
    CheckCuda(add(params, on), "launch of the decode merge kernel");
    return;
  }
  DecodeParams sums = params;
  sums.o = params.unrotated;
  sums.o_is_bf16 = 0;
  CheckCuda(add(sums, on), "launch of the decode merge kernel");
  const auto rotate = dim == 64    ? LaunchRotate<64>
                      : dim == 128 ? LaunchRotate<128>
                                   : LaunchRotate<256>;
  CheckCuda(rotate(params, on), "launch of the kernel that rotates the output");
}

}  // namespace oscar
