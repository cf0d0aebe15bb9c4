// The use case of oscar-verify: zoo entries against held-out traces, the model, or both.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/core/value.h"
#include "oscar/verify/served.h"
#include "oscar/verify/verify_model.h"
#include "oscar/verify/verify_traces.h"

namespace oscar {

struct VerifyOptions {
  std::vector<std::filesystem::path> zoo;  // folders; may be empty: baselines only
  TraceVerifyOptions traces;               // no traces given: the model only
  ModelVerifyOptions model;                // no model given: traces only
  // Over `traces.method`, see ApplyServed.
  ServedSettings served;
};

// The record of docs/formats/report.md. Throws Error(kUsage) when there is neither a trace nor a
// model with text, and what the two halves throw.
Value RunVerify(const VerifyOptions& options, const RunContext& context);

// Name and version of LibTorch where this build has it; the model half needs it.
std::vector<std::pair<std::string, std::string>> VerifyLibraries();

}  // namespace oscar
