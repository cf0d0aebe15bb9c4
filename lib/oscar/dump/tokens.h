// Token sequences of a model's run, from text or from given ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/dump/dump.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

struct TokenData {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<bool> complete;  // false: cut by --tokens
  Value manifest;              // source, files, tokenizer_hash, template, window
  std::vector<std::string> notes;
};

// Reads, tokenises and packs what the options name. Throws Error(kData) when nothing is left,
// Error(kFormat) naming file and place.
TokenData LoadTokens(const DumpOptions& options, const ModelWeights& model);

// Ids from an HDF5 file: dataset `token_ids` or `input_ids`, one sequence (1-D) or one a row (2-D),
// in the root or in its groups, which are taken in the order of their names.
std::vector<std::vector<int32_t>> ReadTokenIdsH5(const std::filesystem::path& file);

// {name, bytes, sha256} of an input file.
Value DescribeFile(const std::filesystem::path& file);

}  // namespace oscar
