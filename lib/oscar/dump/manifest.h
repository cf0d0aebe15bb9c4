// The manifest of a trace (docs/formats/trace.md).
#pragma once

#include "oscar/core/progress.h"
#include "oscar/core/value.h"
#include "oscar/dump/dump.h"
#include "oscar/trace/trace.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

// Keys that every trace has: the tool, the options that shape the result, the row and token counts
// of `header`.
void DescribeRun(const DumpOptions& options, const RunContext& context, TraceHeader& header);

// Keys that name the model.
void DescribeModel(const ModelWeights& model, Value& manifest);

// Times and host, for printing only.
Value DescribeMoment(double seconds);

}  // namespace oscar
