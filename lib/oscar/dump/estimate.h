// What a run will need, for --dry-run.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/progress.h"
#include "oscar/dump/dump.h"
#include "oscar/dump/import_plan.h"
#include "oscar/dump/import_survey.h"
#include "oscar/stats/capture.h"
#include "oscar/trace/trace.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

// Bytes of the finished trace file, HDF5's own bookkeeping left out (below one percent).
int64_t TraceBytes(const std::vector<LayerShape>& layers, const CaptureSpec& spec,
                   const TraceHeader& header);

// Runs the first two layers on a short sequence and scales by the work per token.
DumpEstimate EstimateModelDump(const ModelWeights& model, const CaptureSpec& spec,
                               const TraceHeader& header,
                               const std::vector<std::vector<int32_t>>& sequences,
                               const DumpOptions& options, const RunContext& context);

// Observes a short sequence of random rows of the first layer's shape and scales by the tokens.
DumpEstimate EstimateImport(const ImportSurvey& survey, const CaptureSpec& spec,
                            const TraceHeader& header, const RunContext& context);

}  // namespace oscar
