// The end-to-end half of oscar-verify: the model runs over held-out text with its cache quantised.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
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

// A run that is known to be possible: opened, tokenised and checked, so that nothing that the user
// can get wrong is found after hours of work on traces.
class ModelVerification {
 public:
  // The schemes, controls and the overlap rule are those of `shared`. Throws what OpenModel and
  // LoadText throw; Error(kMismatch) for rotations of another model and for text seen in
  // calibration; Error(kUsage) for schemes that do not fit; Error(kDevice) without the device.
  ModelVerification(const ModelVerifyOptions& options, const TraceVerifyOptions& shared,
                    const EntrySet& entries);
  ~ModelVerification();

  // Runs the model and adds hidden_error, next_token_kl, top1_agreement and perplexity_ratio to
  // `verification`: to schemes that are there already by name, and as new ones; its inputs and
  // notes as well. Throws what RunEndToEnd throws.
  void Run(const RunContext& context, Verification& verification) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace oscar
