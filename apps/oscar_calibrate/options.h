// The options of oscar-calibrate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/calibrate/options.h"
#include "oscar/cli/options.h"

namespace oscar {

// Values as they stand on the command line.
struct CalibrateArguments {
  std::vector<std::string> traces;
  std::string key_target = "qqt";
  std::string value_target = "sst";
  std::string grouping = "layer";
  std::string composition = "r_h_pbr";
  std::string signs = "canonical";
  std::string clip = "search";
  std::string clip_grid = "0.70:1.00:0.01";
  int64_t clip_sequences = 4;
  int64_t clip_positions = 64;
  int64_t sink = 64;
  int64_t recent = 256;
  int64_t flush = 1;
  int64_t group_size = 0;
  std::string scale_dtype = "f32";
  double min_tokens_per_dim = 10;
  std::string model_name;
  std::string out;
};

cli::OptionTable CalibrateTable(CalibrateArguments& arguments);

// Throws Error(kUsage) for values that are no such thing.
CalibrateOptions ToOptions(const CalibrateArguments& arguments, bool force);

}  // namespace oscar
