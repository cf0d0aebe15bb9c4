// From token sequences to the sequence table of a trace.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/trace/trace.h"

namespace oscar {

// Shortens the list so that it has at most `budget` tokens (0: no limit); the sequence at the limit
// is cut and marked incomplete. Starts are renumbered.
void ApplyTokenBudget(std::vector<TraceSequence>& sequences, int64_t budget);

// Marks the first complete sequences that fit into `rows_tokens` together; stops at the first that
// does not. Returns how many.
int64_t ApplyRowBudget(std::vector<TraceSequence>& sequences, int64_t rows_tokens);

// SHA-256 of ids as int32 little-endian.
std::string HashOfIds(const std::vector<int32_t>& ids);

}  // namespace oscar
