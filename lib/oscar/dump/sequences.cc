#include "oscar/dump/sequences.h"

#include "oscar/core/hash.h"

namespace oscar {

void ApplyTokenBudget(std::vector<TraceSequence>& sequences, int64_t budget) {
  int64_t start = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    TraceSequence& s = sequences[i];
    if (budget > 0 && start == budget) {
      sequences.resize(i);
      return;
    }
    s.start = start;
    if (budget > 0 && s.length > budget - start) {
      s.length = budget - start;
      s.complete = false;
    }
    start += s.length;
  }
}

int64_t ApplyRowBudget(std::vector<TraceSequence>& sequences, int64_t rows_tokens) {
  int64_t kept = 0;
  int64_t tokens = 0;
  for (TraceSequence& s : sequences) {
    tokens += s.length;
    if (!s.complete || tokens > rows_tokens) break;
    s.has_rows = true;
    ++kept;
  }
  return kept;
}

std::string HashOfIds(const std::vector<int32_t>& ids) {
  return Sha256Hex(ids.data(), ids.size() * sizeof(int32_t));
}

}  // namespace oscar
