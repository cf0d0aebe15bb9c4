// Schemes on the rows of held-out traces, computed by the kernels that serve a cache: the write
// kernel fills paged caches, the decode kernel attends at every chosen position, and the metrics
// come from what both left behind.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/core/value.h"
#include "oscar/quant/scheme.h"
#include "oscar/trace/trace.h"
#include "oscar/verify/evaluate.h"
#include "oscar/verify/kernel_backend.h"

namespace oscar {

// Leaves out, with a note, the schemes that the kernels cannot run (the Lloyd-Max mode). Throws
// Error(kUnsupported) when a layer's shape, the group size or the scale type is not one of the
// kernels', naming it; Error(kUsage) when no scheme is left.
std::vector<KvScheme> KernelSchemes(std::vector<KvScheme> schemes, const TraceSet& set,
                                    std::vector<std::string>& notes);

struct KernelEvaluation {
  std::vector<SchemeResult> results;  // in the order of the schemes
  // Report parts: what ran ("device") and, where the backend has a clock, "kernels": one object
  // per scheme, times as means over layers. Different in every run.
  Value device;
  Value::Array times;
};

// Metrics of every scheme and layer (docs/metrics.md, "On kernels"): keys, values, logits and
// attention KL from the cache that the write kernel filled; outputs and log-sum-exps from the
// decode kernel. And kernel_code_errors, kernel_row_error, kernel_output_error, kernel_lse_error:
// the agreement with the CPU twins, the worst over layers and sequences. Rows are rotated in
// bfloat16, as EvaluateSchemes does with `as_served`. Schemes as from KernelSchemes.
// Errors as EvaluateSchemes, and Error(kDevice).
KernelEvaluation EvaluateOnKernels(const TraceSet& set, std::span<const SequenceRef> sequences,
                                   std::span<const KvScheme> schemes,
                                   const EvaluationSettings& settings, KernelBackend& backend,
                                   const RunContext& context);

}  // namespace oscar
