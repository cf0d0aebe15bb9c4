// The kernels' arithmetic in plain C++ on host memory: what they are tested against, and what runs
// where there is no GPU. Not fast.
#pragma once

#include <span>
#include <vector>

#include "oscar/cuda/decode.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/write.h"

namespace oscar {

// LaunchWrite on host pointers. The product with the rotation is summed in float32 in index order,
// which the kernels do not promise: rotated rows may differ by one bf16 step; from equal rotated
// rows all bytes are equal. Same errors.
void WriteTwin(const CacheShape& shape, std::span<const WriteJob> jobs);

// LaunchDecode on host pointers, in float64 on the exactly reconstructed rows: the reference. `o`
// must be f32. `lengths` as for PlanDecode.
void DecodeReference(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                     const DecodeInputs& inputs, const DecodeOutputs& outputs);

// The kernel's factored arithmetic with its roundings (codes times fixed-point or half-precision
// queries, half- precision probabilities, float32 sums, base-2 exponentials, partial results of the
// plan's pieces merged by log-sum-exp), apart from the order of sums inside the tensor cores.
void DecodeTwin(const DecodeShape& shape, const DecodePlan& plan, const DecodeInputs& inputs,
                const DecodeOutputs& outputs);

}  // namespace oscar
