// End-to-end loss: the model runs over held-out text with its KV cache replaced by a scheme, each
// layer's error feeding the next, beside the exact run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/progress.h"
#include "oscar/metrics/summary.h"
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

 private:
  const KvScheme& scheme_;
  int threads_;
};

// Means and standard errors over sequences. Token metrics cover the positions that see at least one
// quantised key (position >= sink + recent, every position without windows).
struct EndToEndResult {
  std::string scheme;
  // sqrt(mean over tokens of |h_hat - h|^2 / |h|^2) after each layer.
  std::vector<Summary> hidden_error;
  Summary next_token_kl;     // KL(P || P_hat) in nats
  Summary top1_agreement;    // share of positions with the same most likely token
  Summary perplexity_ratio;  // exp(mean(nll_hat - nll))
  int64_t tokens = 0;        // positions counted
};

// Runs every sequence once per scheme plus once exactly; all schemes share each layer's weights.
// Throws Error(kData) naming sink, recent and the longest sequence when no position is quantised.
std::vector<EndToEndResult> RunEndToEnd(const ModelWeights& weights,
                                        const std::vector<std::vector<int32_t>>& sequences,
                                        const std::vector<KvScheme>& schemes,
                                        const std::string& device, const RunContext& context);

}  // namespace oscar
