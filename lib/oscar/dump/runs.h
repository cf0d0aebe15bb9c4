// The two kinds of run behind RunDump.
#pragma once

#include "oscar/core/progress.h"
#include "oscar/dump/dump.h"
#include "oscar/stats/capture.h"
#include "oscar/trace/trace.h"

namespace oscar {

DumpResult RunModelDump(const DumpOptions& options, const RunContext& context);
DumpResult RunImport(const DumpOptions& options, const RunContext& context);

// Capture specification of the options; rows for `row_sequences` sequences.
CaptureSpec SpecOf(const DumpOptions& options, int64_t row_sequences);

// Counts of a header, ready to be completed by the run.
DumpResult ResultOf(const DumpOptions& options, const TraceHeader& header);

// Hands notes to a watching user.
void Tell(const RunContext& context, const std::vector<std::string>& notes);

}  // namespace oscar
