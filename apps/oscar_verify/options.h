// Command line of oscar-verify.
#pragma once

#include <string>
#include <vector>

#include "oscar/bench/run_bench.h"
#include "oscar/cli/options.h"
#include "oscar/verify/verify.h"

namespace oscar {

struct VerifyArguments {
  std::vector<std::string> zoo, traces, text;
  std::string model, chat_template = "auto", device = "cpu";
  std::vector<std::string> schemes = {"all"};
  std::vector<std::string> model_schemes = {"default"};
  int64_t positions = 128, seed = 1;
  int64_t tokens = 4096, window = 2048;
  std::string sink = "auto", recent = "auto", flush = "auto", group_size = "auto",
              scale_dtype = "auto";
  std::string windows = "on", clip_mode = "sort", clip;
  bool as_served = false, controls = true, allow_overlap = false, selftest = false, layers = false;
  std::string gates, html, report;
};

cli::OptionTable VerifyTable(VerifyArguments& arguments);
// Throws Error(kUsage) for a --clip that is no pair, a count that is neither auto nor a number, and
// an option of the model without --model.
VerifyOptions ToOptions(const VerifyArguments& arguments);
// Refuses files for --html and --report that could not be written or would destroy something,
// before hours of work and not after them: kUsage when both are one file or one is an input, kIo
// when one exists without --force, is no plain file, or its folder does not exist.
void CheckOutputs(const VerifyArguments& arguments, const cli::CommonOptions& common);

// oscar-verify bench.
struct BenchArguments {
  std::vector<std::string> shapes;  // none: heads, or else qwen3-4b
  std::vector<std::string> batches = {"1", "8", "32"};
  std::vector<std::string> contexts = {"8K", "32K", "100K"};
  std::vector<std::string> step_contexts = {"30K", "60K", "100K", "128K"};
  std::vector<std::string> orders = {"random", "sequential"};
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, group_size = 0, sink = 64, recent = 256;
  std::string write_tokens = "32K";
  std::string windows = "off", scale_dtype = "f32", device = "cuda", report;
  double memory_fraction = 0.9;
  bool grid = true, sdpa = true, whole_model = false;
};

cli::OptionTable BenchTable(BenchArguments& arguments);
void CheckOutputs(const BenchArguments& arguments, const cli::CommonOptions& common);
// Throws Error(kUsage) for a list that holds no whole numbers, with K or M (1024, 1024 K) behind,
// and for a size of windows without windows.
BenchOptions ToOptions(const BenchArguments& arguments);

}  // namespace oscar
