#include "oscar/verify/end_to_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/model/runner.h"
#include "oscar/quant/windows.h"

namespace oscar {
namespace {

// A stream of the runner beside its scheme.
struct Stream {
  const KvScheme* scheme = nullptr;
  std::unique_ptr<SchemeTap> tap;
  int index = 0;
};

// The first position that sees a quantised key.
int64_t FirstAffected(const KvScheme& scheme) {
  return scheme.use_windows ? scheme.windows.ShortestUseful() - 1 : 0;
}

void CheckQuantised(const ModelConfig& config, const std::vector<std::vector<int32_t>>& sequences,
                    const std::vector<KvScheme>& schemes) {
  const int64_t longest = LongestOf(sequences);
  std::map<int, LayerShape> shapes;
  for (int layer = 0; layer < config.layers; ++layer) shapes[layer] = config.ShapeOfLayer(layer);
  for (const KvScheme& scheme : schemes) {
    if (scheme.use_windows) LayersKeptExact(shapes, scheme.windows, longest);
    // One more position is needed, since the last one predicts no token of the text.
    if (longest > FirstAffected(scheme) + 1) continue;
    throw Error(
        ErrorCode::kData,
        fmt::format("no position is quantised: {} cover what the longest sequence of {} tokens "
                    "predicts from",
                    WindowsText(scheme.windows), longest),
        "use longer windows of text, or smaller --sink and --recent");
  }
}

double HiddenError(const float* exact, const float* changed, int64_t tokens, int64_t hidden) {
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double error = 0;
    double norm = 0;
    for (int64_t i = t * hidden; i < (t + 1) * hidden; ++i) {
      const double difference = static_cast<double>(changed[i]) - static_cast<double>(exact[i]);
      error += difference * difference;
      norm += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
    }
    if (norm > 0) sum += error / norm;
  }
  return std::sqrt(sum / static_cast<double>(tokens));
}

// One value per sequence that has token metrics, so that all metrics have the same samples.
std::vector<double> HiddenErrors(const ModelRunner& runner, int stream, int64_t hidden,
                                 const KvScheme& scheme,
                                 const std::vector<std::vector<int32_t>>& sequences) {
  std::vector<double> errors;
  int64_t start = 0;
  for (const auto& sequence : sequences) {
    const auto tokens = static_cast<int64_t>(sequence.size());
    if (tokens > FirstAffected(scheme) + 1) {
      errors.push_back(HiddenError(runner.Hidden(0) + start * hidden,
                                   runner.Hidden(stream) + start * hidden, tokens, hidden));
    }
    start += tokens;
  }
  return errors;
}

void AddTokenMetrics(const LogitComparison& logits, const KvScheme& scheme,
                     const std::vector<std::vector<int32_t>>& sequences, EndToEndResult& result) {
  size_t start = 0;
  for (const auto& sequence : sequences) {
    const auto first = static_cast<size_t>(FirstAffected(scheme));
    double kl_sum = 0, agree = 0, nll_sum = 0;
    size_t count = 0;
    for (size_t t = first; t + 1 < sequence.size(); ++t, ++count) {
      kl_sum += logits.kl[start + t];
      agree += logits.top1[start + t];
      nll_sum += logits.nll_stream[start + t] - logits.nll_exact[start + t];
    }
    if (count > 0) {
      const auto n = static_cast<double>(count);
      result.next_token_kl.push_back(kl_sum / n);
      result.top1_agreement.push_back(agree / n);
      result.perplexity_ratio.push_back(std::exp(nll_sum / n));
    }
    start += sequence.size();
  }
}

}  // namespace

int64_t LongestOf(const std::vector<std::vector<int32_t>>& sequences) {
  size_t longest = 0;
  for (const auto& sequence : sequences) longest = std::max(longest, sequence.size());
  return static_cast<int64_t>(longest);
}

void SchemeTap::Apply(int layer, std::span<const int64_t> positions, HeadRows<const float> k,
                      HeadRows<const float> v, HeadRows<float> k_hat, HeadRows<float> v_hat) {
  OSCAR_CHECK(static_cast<int64_t>(positions.size()) == k.tokens);
  const LayerScheme& side = scheme_.ForLayer(layer);
  if (!scheme_.matched_noise) {
    Reconstruct(side.key, k, k_hat, threads_);
    Reconstruct(side.value, v, v_hat, threads_);
    return;
  }
  // Keys and values of every layer draw from streams of their own.
  const uint64_t seed = DeriveSeed(scheme_.noise_seed, fmt::format("layer {}", layer));
  ReconstructMatchedNoise(side.key, k, k_hat, DeriveSeed(seed, "key"), threads_);
  ReconstructMatchedNoise(side.value, v, v_hat, DeriveSeed(seed, "value"), threads_);
}

bool SchemeTap::ChangesWindows(int layer) const {
  const LayerScheme& side = scheme_.ForLayer(layer);
  return WindowsAreInexact(side.key) || WindowsAreInexact(side.value);
}

void SchemeTap::ApplyWindows(int layer, HeadRows<const float> k, HeadRows<const float> v,
                             HeadRows<float> k_window, HeadRows<float> v_window) {
  const LayerScheme& side = scheme_.ForLayer(layer);
  ReconstructWindows(side.key, k, k_window, threads_);
  ReconstructWindows(side.value, v, v_window, threads_);
}

std::vector<EndToEndResult> RunEndToEnd(const ModelWeights& weights,
                                        const std::vector<std::vector<int32_t>>& sequences,
                                        const std::vector<KvScheme>& schemes,
                                        const std::string& device, const RunContext& context) {
  CheckQuantised(weights.config(), sequences, schemes);
  ModelRunner runner(weights, sequences, device, context);
  std::vector<Stream> streams;
  std::vector<EndToEndResult> results;
  for (const KvScheme& scheme : schemes) {
    Stream stream{&scheme, std::make_unique<SchemeTap>(scheme, context.threads), 0};
    stream.index = runner.AddStream(stream.tap.get(), scheme.windows, scheme.use_windows);
    streams.push_back(std::move(stream));
    results.emplace_back().scheme = scheme.name;
  }
  const int64_t layers = weights.config().layers;
  context.progress->Begin("model with quantised cache", layers, "layers");
  while (runner.next_layer() < layers) {
    runner.RunLayer(nullptr, nullptr);
    for (size_t s = 0; s < streams.size(); ++s) {
      results[s].hidden_error.push_back(
          HiddenErrors(runner, streams[s].index, weights.config().hidden, schemes[s], sequences));
    }
    context.progress->Advance(1);
  }
  context.progress->End();
  context.progress->Begin("next-token distributions", static_cast<int64_t>(streams.size()),
                          "schemes");
  for (size_t s = 0; s < streams.size(); ++s) {
    context.cancel->ThrowIfCancelled("");
    AddTokenMetrics(runner.CompareLogits(streams[s].index), *streams[s].scheme, sequences,
                    results[s]);
    context.progress->Advance(1);
  }
  context.progress->End();
  return results;
}

}  // namespace oscar
