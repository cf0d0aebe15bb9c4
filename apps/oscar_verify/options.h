// Command line of oscar-verify.
#pragma once

#include <string>
#include <vector>

#include "oscar/cli/options.h"
#include "oscar/verify/verify.h"

namespace oscar {

struct VerifyArguments {
  std::vector<std::string> zoo, traces, text;
  std::string model, chat_template = "auto", device = "cpu";
  std::vector<std::string> schemes = {"all"};
  std::vector<std::string> model_schemes = {"default"};
  int64_t sink = 64, recent = 256, group_size = 0, positions = 128, seed = 1;
  int64_t tokens = 4096, window = 2048;
  std::string windows = "on", scale_dtype = "f32", clip_mode = "sort", clip;
  bool as_served = false, controls = true, allow_overlap = false, selftest = false, layers = false;
  std::string gates, html, report;
};

cli::OptionTable VerifyTable(VerifyArguments& arguments);
// Throws Error(kUsage) for a --clip that is no pair.
VerifyOptions ToOptions(const VerifyArguments& arguments);

}  // namespace oscar
