// What the decode kernels get by value. Plain C++.
#pragma once

#include <cstdint>

#include "oscar/cuda/plan.h"

namespace oscar {

enum class ScaleKind : int32_t { kF32, kF16, kBF16 };

struct DecodeParams {
  // As PiecesForDevice lists them.
  const PlanPiece* pieces;
  const int32_t* partial_begin;
  const PlanHead* plan;
  const char* k_codes;
  const char* v_codes;
  const char* k_scales;
  const char* v_scales;
  const char* k_rows;
  const char* v_rows;
  const char* quantised_slots;
  const char* row_slots;
  const uint16_t* q;  // [requests, q_heads, dim] bf16
  // [partials, heads per block, group size, dim]: sums of 2^(score - max) value.
  float* partial_o;
  float* partial_sums;  // [partials, heads per block, group size, 2]: max, sum of 2^(score - max)
  void* o;              // [requests, q_heads, dim]
  float* lse;           // natural log; may be null
  // Beside what else the sums read: parameters are fetched 64 bytes at a time.
  int32_t o_is_bf16;
  int32_t rotation_per_head;
  const uint16_t* v_rotation;
  float* unrotated;  // [requests, q_heads, dim]: the output before its rotation, if there is one
  int32_t blocks;
  int32_t kv_heads;
  int32_t group_size;                              // query heads per KV head
  float logit_scale;                               // times log2(e)
  uint32_t code_stride, scale_stride, row_stride;  // bytes of a slot
  int32_t heads_log2;                              // KV heads per block, the most of any plan
  int32_t groups;                                  // of channels
  int32_t head_scale_log2;                         // bytes of one head's (scale, zero) of one token
  ScaleKind scale_kind;
  int32_t quantised_slot_log2;  // bytes of a slot number: 2 or 3
  int32_t row_slot_log2;
  // Whether the first tiles of a tier are fetched without waiting for the launches before.
  int32_t quantised_early, rows_early;
};

}  // namespace oscar
