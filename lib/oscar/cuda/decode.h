// Decode attention over a cache of 2-bit history and bf16 windows: one query token per request.
//
//   o[r, h] = sum_t p_t v_t,  p = softmax_t(logit_scale * q[r, h] . k_t)
//
// over the request's tokens of both tiers, k_t and v_t of KV head h / (query heads per KV head) as
// the cache reconstructs them in float32 ((code - zero) * scale, or the bf16 row). Scale and zero
// are applied to scores and probabilities, never to elements:
//   q . k_t = s_t (q . c_t - z_t sum(q)),   o = (sum_t (p_t s_t) c_t - sum_t (p_t s_t) z_t) / sum p
// so codes feed the tensor cores as they lie in memory. Accuracy: output within 1e-3 (relative
// Frobenius) and log-sum-exp within 1e-4, or four float32 steps where it is large, of float64
// arithmetic on the same cache, as long as no channel of a query is some hundred times as large as
// all others (kFixedBits, kKeyFieldBits in decode_limits.h). Truncated sums take more off outputs
// of steps so large that blocks have more than kMaxCuts pieces (plan.h).
//
// A plan whose requests have rows only makes this a BF16 paged decode attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/cuda/cache.h"
#include "oscar/cuda/device.h"
#include "oscar/cuda/plan.h"

namespace oscar {

// Tensors of one call. All on the device.
struct DecodeInputs {
  // [requests, q_heads, dim], rotated like the cached keys. A NaN in one makes its o and its lse
  // NaN where there are tokens.
  const BFloat16* q = nullptr;
  QuantisedCache quantised;
  RowCache rows;
  SlotList quantised_slots;  // as the plan counts them
  SlotList row_slots;
  float logit_scale = 1;  // usually dim^-1/2
  // Optional rotation of the values, bf16 [dim, dim] or one per KV head: the output is multiplied
  // by its transpose, o R_V^T. nullptr leaves the output in the cache's coordinates.
  const BFloat16* v_rotation = nullptr;
  bool v_rotation_per_head = false;
  // Whether the first quantised tokens, or bf16 rows, may be fetched while launches before this one
  // still run, as launches of this library do: true where none of them writes what this call reads,
  // back to and with the last kernel that began after all before it were done, as kernels of other
  // libraries mostly do (docs/cuda.md). Queries are always waited for.
  bool quantised_settled = false;
  bool rows_settled = false;
};

struct DecodeOutputs {
  void* o = nullptr;           // [requests, q_heads, dim]; zero where a request has no tokens
  DType o_type = DType::kF32;  // f32 or bf16
  float* lse = nullptr;        // [requests, q_heads], natural log; -inf without tokens; may be null
};

// Throws what LaunchDecode throws on tensors that do not fit, or that `plan` needs and that are not
// there.
void CheckDecodeTensors(const DecodePlan& plan, const DecodeInputs& inputs,
                        const DecodeOutputs& outputs);

// A plan's device copy and the partial results: made once for the largest batch, reused by every
// layer of a step and by every step.
class DecodeWorkspace {
 public:
  // For up to `max_requests` requests. Throws Error(kDevice) without a device.
  DecodeWorkspace(const DecodeShape& shape, int64_t max_requests);

  // Plans for the device that was current when this was made, and copies the plan to it in order of
  // `stream`, the one that the launches are on: none of them that still reads the plan before loses
  // it. `lengths` may differ in number and size from call to call; graphs captured before stay
  // valid. Not while the stream is captured: replays would read the host's lists again, which the
  // next plan replaces.
  void Plan(std::span<const RequestLengths> lengths, Stream stream);
  // The same with a plan made elsewhere. Throws Error(kUsage) when it does not fit.
  void SetPlan(DecodePlan plan, Stream stream);

  const DecodeShape& shape() const { return shape_; }
  const DecodePlan& plan() const { return plan_; }
  int64_t max_requests() const { return max_requests_; }
  int64_t blocks() const { return blocks_; }
  // On the device, as PiecesForDevice lists them.
  const PlanPiece* pieces() const { return pieces_.As<PlanPiece>(); }
  const PlanHead* plan_head() const { return begins_.As<PlanHead>(); }
  const int32_t* partial_begin() const { return reinterpret_cast<const int32_t*>(plan_head() + 1); }
  float* partial_o() const { return partial_o_.As<float>(); }
  float* partial_sums() const { return partial_sums_.As<float>(); }
  float* unrotated() const { return unrotated_.As<float>(); }
  // Overwrites the partial results and rows that are not rotated yet, for tests.
  void PoisonPartials(uint8_t value);

 private:
  DecodeShape shape_;
  int64_t max_requests_ = 0, blocks_ = 0;
  DecodePlan plan_;
  std::vector<int32_t> begins_host_;  // being copied, as are the pieces
  std::vector<PlanPiece> pieces_host_;
  DeviceBuffer pieces_, begins_, partial_o_, partial_sums_, unrotated_;
};

// Two launches on `stream`: partial attention of every piece, and their sums by log-sum-exp; a
// third where the output is rotated. No allocation, no synchronisation; deterministic for one plan.
// Plan, slot lists and rotation are read ahead of launches that still run: as with settled caches,
// none of those may write them. Reads the plan from the workspace when it runs; what was launched
// works with any later plan, as long as `inputs` had the tensors of every tier that the plan reads:
// only those of the present plan are asked for here. One stream at a time for a workspace. Throws
// Error(kUnsupported) on a type of output or slots that the kernels do not handle, Error(kUsage)
// before the first plan and on tensors that are missing or not aligned (cache.h), Error(kDevice)
// when a launch fails.
void LaunchDecode(const DecodeWorkspace& workspace, const DecodeInputs& inputs,
                  const DecodeOutputs& outputs, Stream stream);

}  // namespace oscar
