#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/cuda/decode.h"

namespace oscar {
namespace {

void CheckThere(const DecodePlan& plan, const DecodeInputs& in, const DecodeOutputs& out) {
  if (in.q == nullptr || out.o == nullptr) {
    throw Error(ErrorCode::kUsage, "decode attention needs queries and an output");
  }
  bool quantised = false, rows = false;
  for (const PlanPiece& piece : plan.pieces) {
    if (piece.tokens > 0) (piece.tier == Tier::kQuantised ? quantised : rows) = true;
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

void CheckAlignment(const DecodeInputs& in, const DecodeOutputs& out) {
  const QuantisedCache& c = in.quantised;
  for (const auto& [pointer, what] : {std::pair<const void*, const char*>{in.q, "queries"},
                                      {c.k_codes, "key codes"},
                                      {c.v_codes, "value codes"},
                                      {c.k_scales, "key scales"},
                                      {c.v_scales, "value scales"},
                                      {in.rows.k, "bf16 keys"},
                                      {in.rows.v, "bf16 values"},
                                      {in.v_rotation, "value rotations"},
                                      {out.o, "outputs"}}) {
    CheckAligned(pointer, what, "decode attention");
  }
}

}  // namespace

void CheckDecodeTensors(const DecodePlan& plan, const DecodeInputs& in, const DecodeOutputs& out) {
  CheckSlotType(in.quantised_slots, "the slot list of the quantised tier");
  CheckSlotType(in.row_slots, "the slot list of the bf16 tier");
  if (out.o_type != DType::kF32 && out.o_type != DType::kBF16) {
    throw Error(ErrorCode::kUnsupported, "an attention output of type " +
                                             std::string(DTypeName(out.o_type)) +
                                             " is not supported: f32 and bf16 are");
  }
  CheckThere(plan, in, out);
  CheckAlignment(in, out);
}

}  // namespace oscar
