// The matched control: noise of the same energy as a scheme's error, in no particular direction.
#include <algorithm>
#include <cmath>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/core/random.h"
#include "oscar/quant/scheme.h"

namespace oscar {
namespace {

// Streams of (seed, token, head) must not overlap: the words pass through the generator's own
// seeding, which mixes every bit.
uint64_t RowSeed(uint64_t seed, int64_t token, int64_t head) {
  return Random(seed ^ (static_cast<uint64_t>(token) * 0x9e3779b97f4a7c15ULL +
                        static_cast<uint64_t>(head) * 0xc2b2ae3d27d4eb4fULL))
      .Next();
}

}  // namespace

void MatchedNoise(HeadRows<const float> x, HeadRows<const float> reconstructed,
                  HeadRows<float> x_hat, uint64_t seed, int threads) {
  OSCAR_CHECK(reconstructed.size() == x.size() && x_hat.size() == x.size());
  ParallelFor(x.tokens, threads, [&](int64_t token) {
    std::vector<double> noise(static_cast<size_t>(x.dim));
    for (int64_t head = 0; head < x.heads; ++head) {
      Random random(RowSeed(seed, token, head));
      const float* const row = x.At(token, head);
      const float* const changed = reconstructed.At(token, head);
      double error = 0;
      double energy = 0;
      for (int64_t d = 0; d < x.dim; ++d) {
        const double difference = static_cast<double>(changed[d]) - static_cast<double>(row[d]);
        error += difference * difference;
        double& value = noise[static_cast<size_t>(d)];
        value = random.Normal();
        energy += value * value;
      }
      const double factor = energy > 0 ? std::sqrt(error / energy) : 0;
      float* const out = x_hat.At(token, head);
      for (int64_t d = 0; d < x.dim; ++d) {
        out[d] = static_cast<float>(static_cast<double>(row[d]) +
                                    factor * noise[static_cast<size_t>(d)]);
      }
    }
  });
}

void ReconstructMatchedNoise(const SideScheme& side, HeadRows<const float> x, HeadRows<float> x_hat,
                             uint64_t seed, int threads) {
  std::vector<float> reconstructed(static_cast<size_t>(x.size()));
  const HeadRows<float> view{reconstructed.data(), x.tokens, x.heads, x.dim};
  Reconstruct(side, x, view, threads);
  MatchedNoise(x, view, x_hat, seed, threads);
}

}  // namespace oscar
