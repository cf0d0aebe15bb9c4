// Rows of one layer of a dump folder, chunk by chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/core/view.h"
#include "oscar/dump/import_survey.h"

namespace oscar {

// bfloat16 rows [tokens, heads, dim] of one part of a chunk: where the file has them, or a copy.
class ChunkRows {
 public:
  // Throws Error(kNumeric) naming layer, chunk, part and row when one of the first `tokens` rows is
  // not finite.
  ChunkRows(const ImportSurvey& survey, int layer, const char* part, int64_t heads,
            const ImportChunk& chunk);

  HeadRows<const BFloat16> rows() const { return rows_; }
  // Whether rounding to bfloat16 changed a value.
  bool rounded() const { return rounded_; }

 private:
  TorchTensor tensor_;          // keeps the mapped file
  std::vector<BFloat16> copy_;  // when the file's layout or type is another
  HeadRows<const BFloat16> rows_;
  bool rounded_ = false;
};

}  // namespace oscar
