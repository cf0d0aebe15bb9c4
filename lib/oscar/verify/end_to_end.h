// End-to-end loss: the model runs over held-out text with its KV cache replaced by a scheme, each
// layer's error feeding the next, beside the exact run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/progress.h"
#include "oscar/quant/scheme.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

// A scheme as a tap of the model runner. With matched_noise set, the rows get Gaussian noise of the
// scheme's own error norm instead of quantisation.
class SchemeTap final : public KvTap {
 public:
  // Keeps a reference to `scheme`.
  SchemeTap(const KvScheme& scheme, int threads) : scheme_(scheme), threads_(threads) {}
  void Apply(int layer, std::span<const int64_t> positions, HeadRows<const float> k,
             HeadRows<const float> v, HeadRows<float> k_hat, HeadRows<float> v_hat) override;
  // As served: rotated rows are rounded to bfloat16 in the windows, too.
  bool ChangesWindows(int layer) const override;
  void ApplyWindows(int layer, HeadRows<const float> k, HeadRows<const float> v,
                    HeadRows<float> k_window, HeadRows<float> v_window) override;

 private:
  const KvScheme& scheme_;
  int threads_;
};

// One value per sequence in which some position that predicts a token sees a quantised key
// (position >= sink + recent, every position without windows); token metrics cover those positions.
// docs/metrics.md has the formulas.
struct EndToEndResult {
  std::string scheme;
  // [layers]: sqrt(mean over tokens of |h_hat - h|^2 / |h|^2) after each layer.
  std::vector<std::vector<double>> hidden_error;
  std::vector<double> next_token_kl;     // KL(P || P_hat) in nats
  std::vector<double> top1_agreement;    // share of positions with the same most likely token
  std::vector<double> perplexity_ratio;  // exp(mean(nll_hat - nll))
};

// Tokens of the longest sequence.
int64_t LongestOf(const std::vector<std::vector<int32_t>>& sequences);

// Runs every sequence once per scheme plus once exactly; all schemes share each layer's weights.
// Throws Error(kData) naming sink, recent and the longest sequence when no position is quantised,
// and a sliding window when that is why.
std::vector<EndToEndResult> RunEndToEnd(const ModelWeights& weights,
                                        const std::vector<std::vector<int32_t>>& sequences,
                                        const std::vector<KvScheme>& schemes,
                                        const std::string& device, const RunContext& context);

}  // namespace oscar
