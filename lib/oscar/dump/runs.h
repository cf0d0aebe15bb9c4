// The two kinds of run behind RunDump.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
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

// Warns, also in the notes, about head dims that nothing can store in 2 bits: their statistics are
// as good as any, but oscar-calibrate and oscar-verify refuse them.
void WarnAboutPacking(const std::map<int, LayerShape>& shapes, const RunContext& context,
                      DumpResult& result);

// Runs `write`, which writes behind the working folder's header. An Error(kIo) without a hint gets
// the one that finished layers are not lost.
void Resumable(const DumpOptions& options, const std::function<void()>& write);

// Hands notes to a watching user.
void Tell(const RunContext& context, const std::vector<std::string>& notes);

}  // namespace oscar
