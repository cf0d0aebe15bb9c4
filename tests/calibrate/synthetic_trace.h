// Traces of made-up models: Gaussian rows whose heads have chosen covariances.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/linalg/matrix.h"
#include "oscar/trace/trace.h"

namespace oscar::test {

struct SyntheticTrace {
  std::vector<int> layers = {0, 1};
  int64_t q_heads = 4, kv_heads = 2;
  std::vector<int64_t> k_dims = {16}, v_dims = {16};  // by layer, the last one repeated
  std::vector<int64_t> sliding_windows = {0};         // likewise; 0: none
  std::vector<int64_t> lengths = {48, 64, 40, 52};    // of sequences
  size_t sequences_with_rows = 4;
  uint64_t seed = 1;
  double spectrum_range = 100;  // of every covariance
  bool heads_alike = false;     // one covariance for all heads of a layer
  double key_outlier = 0;       // mean of two channels of every head's keys; the others' is 0
  std::string model_id = "synthetic";
  int threads = 1;  // layers made at a time
};

// Writes the trace; moments come from the rows of all tokens.
void WriteSynthetic(const SyntheticTrace& spec, const std::filesystem::path& path);

}  // namespace oscar::test
