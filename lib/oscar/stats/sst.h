// The score-weighted second moment of the values (`sst`), computed from rows.
#pragma once

#include <vector>

#include "oscar/core/view.h"
#include "oscar/stats/moments.h"

namespace oscar {

// A_h = sum of qq over the query heads of KV head h / (count g): one [D_k, D_k] matrix per KV head.
// Throws Error(kData) when `qq` is absent or count is 0.
std::vector<Matrix> ScoreMatrices(const LayerMoments& moments);

// Adds the terms of a block of tokens:
//   sst[h] += sum_t w_t v_t^T v_t,  sst_weight[h] += sum_t w_t,  w_t = k_t A_h k_t^T
// k [T, H_kv, D_k] and v [T, H_kv, D_v]; sst [H_kv, D_v, D_v], sst_weight [H_kv]. Float64
// throughout.
void AddSst(const std::vector<Matrix>& scores, HeadRows<const float> k, HeadRows<const float> v,
            MomentTensor& sst, MomentTensor& sst_weight);

}  // namespace oscar
