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
  int64_t sink = 64, recent = 256, flush = 1, group_size = 0, positions = 128, seed = 1;
  int64_t tokens = 4096, window = 2048;
  std::string windows = "on", scale_dtype = "f32", clip_mode = "sort", clip;
  bool as_served = false, controls = true, allow_overlap = false, selftest = false, layers = false;
  std::string gates, html, report;
};

cli::OptionTable VerifyTable(VerifyArguments& arguments);
// Throws Error(kUsage) for a --clip that is no pair.
VerifyOptions ToOptions(const VerifyArguments& arguments);
// Refuses files for --html and --report that could not be written, before hours of work and not
// after them: kUsage when both are one file, kIo when one exists and `force` is not set.
void CheckOutputs(const VerifyArguments& arguments, bool force);

}  // namespace oscar
