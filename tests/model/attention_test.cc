// The CPU attention against its formula in float64.
#include <gtest/gtest.h>

#include <cmath>

#include "model/compare.h"
#include "oscar/core/random.h"
#include "oscar/model/cpu_attention.h"

namespace oscar {
namespace {

struct Shape {
  int64_t tokens, q_heads, kv_heads, k_dim, v_dim, window;
};

std::vector<float> Normals(int64_t count, uint64_t seed, double scale) {
  Random random(seed);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = static_cast<float>(scale * random.Normal());
  return out;
}

struct Data {
  Data(const Shape& shape, double scale)
      : s(shape),
        q(Normals(s.tokens * s.q_heads * s.k_dim, 1, scale)),
        k(Normals(s.tokens * s.kv_heads * s.k_dim, 2, 1)),
        v(Normals(s.tokens * s.kv_heads * s.v_dim, 3, 1)),
        k_hat(Normals(s.tokens * s.kv_heads * s.k_dim, 4, 1)),
        v_hat(Normals(s.tokens * s.kv_heads * s.v_dim, 5, 1)) {}
  HeadRows<const float> Q() const { return {q.data(), s.tokens, s.q_heads, s.k_dim}; }
  HeadRows<const float> K(bool hat = false) const {
    return {(hat ? k_hat : k).data(), s.tokens, s.kv_heads, s.k_dim};
  }
  HeadRows<const float> V(bool hat = false) const {
    return {(hat ? v_hat : v).data(), s.tokens, s.kv_heads, s.v_dim};
  }
  std::vector<float> Run(const std::optional<Windows>& windows, bool backwards = false) const {
    std::vector<float> o(static_cast<size_t>(s.tokens * s.q_heads * s.v_dim), NAN);
    std::optional<TappedCache> cache;
    if (windows) cache = TappedCache{K(true), V(true), *windows};
    CpuAttention attention(Q(), K(), V(), 1 / std::sqrt(static_cast<double>(s.k_dim)), s.window,
                           cache, {o.data(), s.tokens, s.q_heads, s.v_dim});
    for (int64_t i = 0; i < attention.pack_tasks(); ++i) attention.Pack(i);
    CpuAttention::Scratch scratch;
    for (int64_t i = 0; i < attention.tasks(); ++i) {
      attention.Run(backwards ? attention.tasks() - 1 - i : i, scratch);
    }
    return o;
  }

  Shape s;
  std::vector<float> q, k, v, k_hat, v_hat;
};

// Every `step`-th query against the formula; the errors are relative to the largest output.
void Check(const Data& data, const std::optional<Windows>& windows, int64_t step,
           double tolerance) {
  const Shape& s = data.s;
  const std::vector<float> actual = data.Run(windows);
  test::WorstError worst;
  for (int64_t i = s.tokens - 1; i >= 0; i -= step) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      const int64_t kv = h / (s.q_heads / s.kv_heads);
      std::vector<double> logits, out(static_cast<size_t>(s.v_dim));
      const int64_t first = s.window > 0 ? std::max<int64_t>(0, i - s.window + 1) : 0;
      double largest = -INFINITY;
      for (int64_t j = first; j <= i; ++j) {
        const bool hat = windows && windows->Quantised(i, j);
        double dot = 0;
        for (int64_t d = 0; d < s.k_dim; ++d) {
          dot += double{data.Q().At(i, h)[d]} * double{data.K(hat).At(j, kv)[d]};
        }
        logits.push_back(dot / std::sqrt(static_cast<double>(s.k_dim)));
        largest = std::max(largest, logits.back());
      }
      double sum = 0;
      for (int64_t j = first; j <= i; ++j) {
        const bool hat = windows && windows->Quantised(i, j);
        const double p = std::exp(logits[static_cast<size_t>(j - first)] - largest);
        sum += p;
        for (int64_t d = 0; d < s.v_dim; ++d) {
          out[static_cast<size_t>(d)] += p * double{data.V(hat).At(j, kv)[d]};
        }
      }
      for (int64_t d = 0; d < s.v_dim; ++d) {
        worst.Add(actual[static_cast<size_t>((i * s.q_heads + h) * s.v_dim + d)],
                  out[static_cast<size_t>(d)] / sum);
      }
    }
  }
  EXPECT_LE(worst.relative(), tolerance)
      << s.tokens << " tokens, dims " << s.k_dim << " " << s.v_dim << ": " << worst.Where();
}

// Logits of a few units carry errors of k_dim roundings of 2^-24 each, most of which cancel, and so
// do the sums over keys: 2e-6 of the largest output.
constexpr double kTolerance = 2e-6;

TEST(CpuAttention, MatchesTheFormulaAtEveryEdgeOfItsBlocks) {
  for (const int64_t tokens : {1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 127, 128, 129, 193, 300}) {
    Check(Data({tokens, 2, 1, 16, 16, 0}, 1), std::nullopt, 1, kTolerance);
    Check(Data({tokens, 2, 2, 24, 40, 0}, 1), std::nullopt, 3, kTolerance);
  }
}

TEST(CpuAttention, TakesAnyWidthAndGrouping) {
  for (const auto& [k_dim, v_dim] :
       {std::pair(1, 1), std::pair(64, 64), std::pair(80, 80), std::pair(96, 128),
        std::pair(192, 128), std::pair(256, 256), std::pair(33, 7)}) {
    Check(Data({150, 6, 2, k_dim, v_dim, 0}, 1), std::nullopt, 7, kTolerance);
    Check(Data({150, 5, 5, k_dim, v_dim, 0}, 1), Windows{3, 50}, 7, kTolerance);
  }
}

TEST(CpuAttention, SlidingWindows) {
  for (const int64_t window : {1, 2, 16, 47, 64, 65, 128, 200, 1000}) {
    Check(Data({300, 2, 1, 16, 16, window}, 1), std::nullopt, 1, kTolerance);
    Check(Data({300, 2, 1, 16, 16, window}, 1), Windows{7, 40}, 1, kTolerance);
  }
}

TEST(CpuAttention, CachesWithEveryKindOfWindow) {
  for (const int64_t sink : {0, 1, 4, 63, 64, 65, 128, 290, 299, 300, 1000}) {
    for (const int64_t recent : {0, 1, 2, 47, 64, 100, 256, 299, 300, 1000}) {
      Check(Data({300, 2, 1, 16, 16, 0}, 1), Windows{sink, recent}, 1, kTolerance);
    }
  }
}

TEST(CpuAttention, CachesThatFlushSeveralTokensAtATime) {
  for (const int64_t flush : {2, 7, 8, 47, 64, 100, 500}) {
    for (const int64_t recent : {0, 1, 47, 64, 100}) {
      Check(Data({300, 2, 1, 16, 16, 0}, 1), Windows{4, recent, flush}, 1, kTolerance);
      Check(Data({300, 2, 1, 16, 16, 70}, 1), Windows{0, recent, flush}, 1, kTolerance);
    }
  }
}

TEST(CpuAttention, LargeLogitsPickOneKey) {
  // Standard deviation of the logits near 1000: all but one probability vanish, nothing overflows.
  // Logits are off by up to 1e-3 then, so two keys within that of each other would differ; the
  // largest logit here leads by more.
  const Data data({200, 2, 1, 16, 16, 0}, 1000);
  Check(data, std::nullopt, 1, 2e-3);
  for (const float x : data.Run(std::nullopt)) EXPECT_TRUE(std::isfinite(x));
}

TEST(CpuAttention, OrderOfTasksDoesNotMatter) {
  const Data data({333, 4, 2, 32, 32, 0}, 1);
  EXPECT_EQ(data.Run(std::nullopt), data.Run(std::nullopt, true));
  EXPECT_EQ(data.Run(Windows{4, 64}), data.Run(Windows{4, 64}, true));
}

TEST(CpuAttention, NotANumberReachesTheQueriesThatSeeIt) {
  Data data({100, 1, 1, 16, 16, 0}, 1);
  data.k[50 * 16 + 3] = NAN;
  const std::vector<float> o = data.Run(std::nullopt);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(std::isnan(o[static_cast<size_t>(i * 16)]), i >= 50) << i;
  }
}

}  // namespace
}  // namespace oscar
