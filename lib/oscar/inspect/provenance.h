// Does a rotation file come from the data of a trace? (docs/formats/zoo-report.md, "Provenance")
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/trace/trace.h"
#include "oscar/zoo/entry.h"

namespace oscar {

enum class ProvenanceVerdict {
  kFits,            // U diagonalises the target, and the stored eigenvalues are its diagonal
  kOther,           // another model, other data or another target
  kNotRecoverable,  // the rotation does not contain U, or the trace lacks the moment
};
std::string_view ProvenanceName(ProvenanceVerdict verdict);

// Result for one matrix. With C the trace's target, U recovered from R and D = U^T C U:
struct ProvenanceResult {
  int64_t layer = 0;
  int64_t head = -1;  // -1: one matrix for all heads
  ProvenanceVerdict verdict = ProvenanceVerdict::kNotRecoverable;
  std::string reason;       // why not, or empty
  double off_diagonal = 0;  // |D - diag D|_F / |C|_F
  double tolerance = 0;     // what rounding of R explains: 4 u sqrt(dim), u its unit roundoff
  double alignment = 0;     // share of |C|_F^2 beyond the mean that diag D holds: 1 fits, 0 random
  double eigenvalue_error = -1;  // max |stored - D_ii| / |C|_F; -1: none stored
};

// All layers and heads of one side. `context` reports one unit a layer.
std::vector<ProvenanceResult> CheckProvenance(const ZooFile& file, ZooSide side,
                                              const TraceSet& traces, const RunContext& context);

}  // namespace oscar
