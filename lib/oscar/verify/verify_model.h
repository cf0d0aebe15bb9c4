// The end-to-end half of oscar-verify: the model runs over held-out text with its cache quantised.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/verify/verify_traces.h"

namespace oscar {

struct ModelVerifyOptions {
  std::filesystem::path model;              // Hugging Face folder or .gguf file
  std::vector<std::filesystem::path> text;  // held-out text
  std::string chat_template = "auto";
  int64_t tokens = 4096;
  int64_t window = 2048;
  std::string device = "cpu";
  // As in TraceVerifyOptions; "default" is bf16, naive, hadamard, clip-only and every zoo entry.
  std::vector<std::string> schemes = {"default"};
};

// Runs the model with the schemes of `shared` (zoo entries, method settings, controls for zoo
// entries, overlap rule) and adds hidden_error, next_token_kl, top1_agreement and
// perplexity_ratio to `verification`: to schemes that are there already by name, and as new ones.
// Throws what OpenModel, LoadText and RunEndToEnd throw; Error(kMismatch) for rotations of another
// model and for text seen in calibration.
void VerifyModel(const ModelVerifyOptions& options, const TraceVerifyOptions& shared,
                 const RunContext& context, Verification& verification);

}  // namespace oscar
