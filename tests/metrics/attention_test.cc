#include "oscar/metrics/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/quant/scheme.h"

namespace oscar {
namespace {

struct Case {
  LayerShape shape;
  int64_t tokens;
  std::vector<float> q, k, v, o_proj;

  Case(int64_t q_heads, int64_t kv_heads, int64_t k_dim, int64_t v_dim, int64_t count,
       int64_t window, uint64_t seed, double sharpness = 1)
      : tokens(count) {
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.k_dim = k_dim;
    shape.v_dim = v_dim;
    shape.hidden = 24;
    shape.softmax_scale = 1 / std::sqrt(static_cast<double>(k_dim));
    shape.window = window;
    Random random(seed);
    const auto fill = [&](std::vector<float>& rows, int64_t size, double factor) {
      rows.resize(static_cast<size_t>(size));
      for (float& x : rows) x = static_cast<float>(factor * random.Normal());
    };
    fill(q, count * q_heads * k_dim, sharpness);
    fill(k, count * kv_heads * k_dim, 1);
    fill(v, count * kv_heads * v_dim, 1);
    fill(o_proj, 24 * q_heads * v_dim, 1);
  }
  HeadRows<const float> Q() const { return {q.data(), tokens, shape.q_heads, shape.k_dim}; }
  HeadRows<const float> K(const std::vector<float>& rows) const {
    return {rows.data(), tokens, shape.kv_heads, shape.k_dim};
  }
  HeadRows<const float> V(const std::vector<float>& rows) const {
    return {rows.data(), tokens, shape.kv_heads, shape.v_dim};
  }
};

std::vector<float> Perturbed(const std::vector<float>& rows, double size, uint64_t seed) {
  Random random(seed);
  std::vector<float> changed = rows;
  for (float& x : changed) x += static_cast<float>(size * random.Normal());
  return changed;
}

// The definitions, one query and head at a time, in long double and without any shared code.
struct Naive {
  long double kl = 0, logit_top = 0, logit_bottom = 0, out_top = 0, out_bottom = 0;
  long double projected_top = 0, projected_bottom = 0;
  long double region_kl[3] = {}, region_mass[3] = {}, region_top[3] = {}, region_bottom[3] = {};
  int64_t rows = 0;
};

struct NaiveInput {
  const Case& layer;
  const std::vector<float>&k_hat, &v_hat, &k_window, &v_window;
  Windows windows;
  bool use_windows;
};

Naive Compute(const NaiveInput& in, const std::vector<int64_t>& queries) {
  const Case& c = in.layer;
  const int64_t group = c.shape.q_heads / c.shape.kv_heads;
  Naive result;
  for (const int64_t i : queries) {
    std::vector<long double> delta_o(static_cast<size_t>(c.shape.q_heads * c.shape.v_dim));
    std::vector<long double> exact_o(delta_o.size());
    for (int64_t h = 0; h < c.shape.q_heads; ++h) {
      const int64_t kv = h / group;
      const int64_t first = c.shape.window > 0 ? std::max<int64_t>(0, i - c.shape.window + 1) : 0;
      std::vector<long double> logits, changed;
      for (int64_t j = first; j <= i; ++j) {
        const bool quantised = !in.use_windows || in.windows.Quantised(i, j);
        long double a = 0, b = 0;
        for (int64_t d = 0; d < c.shape.k_dim; ++d) {
          const auto at = static_cast<size_t>((j * c.shape.kv_heads + kv) * c.shape.k_dim + d);
          const long double x = c.Q().At(i, h)[d];
          a += x * c.k[at];
          b += x * (quantised ? in.k_hat[at] : in.k_window[at]);
        }
        logits.push_back(a * c.shape.softmax_scale);
        changed.push_back(b * c.shape.softmax_scale);
      }
      const auto softmax = [](const std::vector<long double>& x) {
        long double top = x[0], sum = 0;
        for (const long double value : x) top = std::max(top, value);
        std::vector<long double> p;
        for (const long double value : x) p.push_back(std::exp(value - top));
        for (const long double value : p) sum += value;
        for (long double& value : p) value /= sum;
        return p;
      };
      const std::vector<long double> p = softmax(logits);
      const std::vector<long double> p_hat = softmax(changed);
      long double d_mean = 0, l_mean = 0;
      for (size_t j = 0; j < p.size(); ++j) {
        d_mean += (changed[j] - logits[j]) / static_cast<long double>(p.size());
        l_mean += logits[j] / static_cast<long double>(p.size());
      }
      for (size_t j = 0; j < p.size(); ++j) {
        const int64_t key = first + static_cast<int64_t>(j);
        const size_t region = key < in.windows.sink ? (in.windows.Quantised(i, key) ? 1 : 0)
                              : in.windows.Quantised(i, key) ? 1
                                                             : 2;
        const long double kl = p[j] * std::log(p[j] / p_hat[j]);
        const long double top = std::pow(changed[j] - logits[j] - d_mean, 2);
        const long double bottom = std::pow(logits[j] - l_mean, 2);
        result.kl += kl;
        result.region_kl[region] += kl;
        result.region_mass[region] += p[j];
        result.logit_top += top;
        result.logit_bottom += bottom;
        result.region_top[region] += top;
        result.region_bottom[region] += bottom;
        const bool quantised = !in.use_windows || in.windows.Quantised(i, key);
        for (int64_t d = 0; d < c.shape.v_dim; ++d) {
          const auto at = static_cast<size_t>((key * c.shape.kv_heads + kv) * c.shape.v_dim + d);
          const auto o = static_cast<size_t>(h * c.shape.v_dim + d);
          const long double stored = quantised ? in.v_hat[at] : in.v_window[at];
          exact_o[o] += p[j] * c.v[at];
          delta_o[o] += p_hat[j] * stored - p[j] * c.v[at];
        }
      }
      ++result.rows;
    }
    for (size_t o = 0; o < exact_o.size(); ++o) {
      result.out_top += delta_o[o] * delta_o[o];
      result.out_bottom += exact_o[o] * exact_o[o];
    }
    for (size_t row = 0; row < 24; ++row) {
      long double exact = 0, delta = 0;
      for (size_t o = 0; o < exact_o.size(); ++o) {
        exact += exact_o[o] * c.o_proj[row * exact_o.size() + o];
        delta += delta_o[o] * c.o_proj[row * exact_o.size() + o];
      }
      result.projected_top += delta * delta;
      result.projected_bottom += exact * exact;
    }
  }
  return result;
}

// Sums of squares: products in float32 over D = 64 channels and 256 keys; each factor of the sum
// carries at most about 300 2^-24 of the magnitudes, 2e-5, which cancellation in q.dk and in p V
// raises by the ratio of magnitudes to results, here below 20.
constexpr double kTolerance = 4e-4;

void ExpectClose(double found, long double expected, const char* what) {
  EXPECT_NEAR(found, static_cast<double>(expected),
              kTolerance * std::abs(static_cast<double>(expected)) + 1e-9)
      << what;
}

void ExpectEqual(const AttentionErrors& found, const Naive& expected) {
  ExpectClose(found.attention_kl.sum, expected.kl, "kl");
  EXPECT_EQ(found.attention_kl.count, expected.rows);
  ExpectClose(found.logit_error.numerator, expected.logit_top, "logit numerator");
  ExpectClose(found.logit_error.denominator, expected.logit_bottom, "logit denominator");
  ExpectClose(found.output_error.numerator, expected.out_top, "output numerator");
  ExpectClose(found.output_error.denominator, expected.out_bottom, "output denominator");
  ExpectClose(found.projected_output_error.numerator, expected.projected_top, "projected");
  ExpectClose(found.projected_output_error.denominator, expected.projected_bottom, "projected");
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_NEAR(found.region_kl[r].sum, static_cast<double>(expected.region_kl[r]),
                kTolerance * (static_cast<double>(expected.kl) + std::abs(found.region_kl[r].sum)))
        << r;
    ExpectClose(found.region_mass[r].sum, expected.region_mass[r], "mass");
    ExpectClose(found.region_logit_error[r].numerator, expected.region_top[r], "region logit");
    ExpectClose(found.region_logit_error[r].denominator, expected.region_bottom[r], "region");
  }
}

struct Setting {
  int64_t q_heads, kv_heads, k_dim, v_dim, tokens, window;
  Windows windows;
  bool use_windows, inexact_windows;
};

TEST(AttentionReference, EqualsTheDefinitions) {
  for (const Setting& s : {Setting{4, 2, 64, 64, 150, 0, {8, 16}, true, false},
                           Setting{9, 3, 16, 16, 333, 0, {8, 16}, true, false},
                           Setting{9, 3, 16, 24, 300, 0, {8, 16}, false, false},
                           Setting{5, 5, 12, 8, 77, 0, {4, 8}, true, true},
                           Setting{7, 1, 20, 12, 129, 40, {4, 8}, true, false},
                           Setting{4, 4, 16, 16, 129, 40, {4, 8}, false, false},
                           Setting{64, 2, 8, 8, 60, 20, {0, 0}, true, true},
                           Setting{4, 2, 16, 16, 150, 0, {8, 16, 8}, true, true},
                           Setting{4, 2, 16, 16, 150, 20, {8, 16, 8}, true, false},
                           Setting{2, 1, 8, 8, 9, 0, {4, 4}, true, false}}) {
    const Case c(s.q_heads, s.kv_heads, s.k_dim, s.v_dim, s.tokens, s.window, 31, 2);
    const std::vector<float> k_hat = Perturbed(c.k, 0.3, 1);
    const std::vector<float> v_hat = Perturbed(c.v, 0.3, 2);
    const std::vector<float> k_window = s.inexact_windows ? Perturbed(c.k, 0.01, 3) : c.k;
    const std::vector<float> v_window = s.inexact_windows ? Perturbed(c.v, 0.01, 4) : c.v;
    const std::vector<int64_t> queries =
        ChooseQueries(s.tokens, 37, s.windows, s.use_windows, s.window);
    const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, 2, c.o_proj);
    CacheRows cache{c.K(k_hat), c.V(v_hat), {}, {}};
    if (s.inexact_windows) {
      cache.k_window = c.K(k_window);
      cache.v_window = c.V(v_window);
    }
    const Naive expected =
        Compute({c, k_hat, v_hat, k_window, v_window, s.windows, s.use_windows}, queries);
    ExpectEqual(exact.Compare(cache, s.windows, s.use_windows, 2), expected);

    // The halves: keys only and values only.
    const Naive keys = Compute({c, k_hat, c.v, c.k, c.v, s.windows, s.use_windows}, queries);
    ExpectClose(exact.KeyKl(c.K(k_hat), s.windows, s.use_windows, 1).sum, keys.kl, "key half");
    const Naive values = Compute({c, c.k, v_hat, c.k, c.v, s.windows, s.use_windows}, queries);
    const ErrorRatio error = exact.ValueError(c.V(v_hat), s.windows, s.use_windows, 1);
    ExpectClose(error.numerator, values.out_top, "value half");
    ExpectClose(error.denominator, values.out_bottom, "value half");
  }
}

TEST(AttentionReference, OutputsOfOthersGiveTheErrorsThatPropagate) {
  const Case c(6, 2, 16, 16, 120, 0, 32, 3);
  const std::vector<float> k_hat = Perturbed(c.k, 0.3, 1), v_hat = Perturbed(c.v, 0.3, 2);
  const std::vector<int64_t> queries = ChooseQueries(120, 13, {2, 4}, false);
  const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, 2, c.o_proj);
  const AttentionReference changed(c.shape, c.Q(), c.K(k_hat), c.V(v_hat), queries, 2, c.o_proj);
  const std::vector<float> outputs(changed.outputs().begin(), changed.outputs().end());
  const AttentionErrors errors = exact.Compare({c.K(k_hat), c.V(v_hat), {}, {}}, {2, 4}, false, 2);
  const ErrorRatio found = exact.OutputError(outputs);
  const ErrorRatio projected = exact.ProjectedOutputError(outputs, 2);
  // Errors of a tenth of the outputs, which are known to a few units of 2^-24.
  EXPECT_NEAR(found.numerator, errors.output_error.numerator, 1e-5 * errors.output_error.numerator);
  EXPECT_EQ(found.denominator, errors.output_error.denominator);
  EXPECT_NEAR(projected.numerator, errors.projected_output_error.numerator,
              1e-5 * errors.projected_output_error.numerator);
  EXPECT_EQ(projected.denominator, errors.projected_output_error.denominator);
  // ln sum exp by hand: query head 5 reads KV head 1.
  const int64_t query = queries[4];
  double sum = 0;
  for (int64_t key = 0; key <= query; ++key) {
    double logit = 0;
    for (int64_t d = 0; d < 16; ++d) {
      logit +=
          static_cast<double>(c.Q().At(query, 5)[d]) * static_cast<double>(c.K(c.k).At(key, 1)[d]);
    }
    sum += std::exp(logit * c.shape.softmax_scale);
  }
  EXPECT_NEAR(exact.LogSum(4, 5), std::log(sum), 1e-5);
}

TEST(AttentionReference, UnchangedRowsGiveExactlyZero) {
  for (const int64_t tokens : {9, 64, 65, 300}) {
    const Case c(6, 2, 16, 16, tokens, 0, 32, 3);
    const std::vector<int64_t> queries = ChooseQueries(tokens, 50, {2, 4}, true);
    const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, 2, c.o_proj);
    const AttentionErrors errors = exact.Compare({c.K(c.k), c.V(c.v), {}, {}}, {2, 4}, true, 2);
    EXPECT_EQ(errors.attention_kl.sum, 0);
    EXPECT_EQ(errors.logit_error.numerator, 0);
    EXPECT_EQ(errors.output_error.numerator, 0);
    EXPECT_EQ(errors.projected_output_error.numerator, 0);
    for (const MeanSum& part : errors.region_kl) EXPECT_EQ(part.sum, 0);
    EXPECT_GT(errors.output_error.denominator, 0);
    // One changed key among the exact ones: rows that do not see it stay exactly zero.
    std::vector<float> k_hat = c.k;
    k_hat[static_cast<size_t>((tokens - 1) * 2 * 16)] += 1;
    const AttentionErrors hidden =
        exact.Compare({c.K(k_hat), c.V(c.v), {}, {}}, {2, 4}, true, 1);  // in the recent window
    EXPECT_EQ(hidden.attention_kl.sum, 0);
    EXPECT_EQ(hidden.output_error.numerator, 0);
  }
}

TEST(AttentionReference, SmallErrorsKeepTheirDigits) {
  // KL of errors of 1e-6 is about 1e-12: a difference of two rounded softmaxes would lose it.
  const Case c(2, 1, 16, 16, 100, 0, 33);
  std::vector<float> k_hat = c.k;
  for (size_t i = 0; i < k_hat.size(); ++i) {
    k_hat[i] = std::nextafter(k_hat[i], i % 3 == 0 ? 10.0F : -10.0F);
  }
  const std::vector<int64_t> queries = ChooseQueries(100, 20, {4, 8}, false);
  const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, 1, c.o_proj);
  const Naive expected = Compute({c, k_hat, c.v, c.k, c.v, {4, 8}, false}, queries);
  const double found = exact.KeyKl(c.K(k_hat), {4, 8}, false, 1).sum;
  EXPECT_LT(expected.kl, 1e-9);
  // ln Z - sum p d in float64: about 1e-16 per row remains.
  EXPECT_NEAR(found, static_cast<double>(expected.kl),
              1e-2 * static_cast<double>(expected.kl) + 40 * 4e-16);
}

TEST(AttentionReference, HugeErrorsStayFiniteAndNanIsNotHidden) {
  const Case c(2, 1, 16, 16, 40, 0, 34, 30);
  const std::vector<int64_t> queries = ChooseQueries(40, 8, {2, 4}, false);
  const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, 1, c.o_proj);
  std::vector<float> k_hat = Perturbed(c.k, 100, 5);  // logit errors of thousands
  const AttentionErrors huge = exact.Compare({c.K(k_hat), c.V(c.v), {}, {}}, {2, 4}, false, 1);
  const Naive expected = Compute({c, k_hat, c.v, c.k, c.v, {2, 4}, false}, queries);
  ExpectClose(huge.attention_kl.sum, expected.kl, "kl of thousands of nats");
  ExpectClose(huge.output_error.numerator, expected.out_top, "output");
  k_hat[5] = std::numeric_limits<float>::quiet_NaN();
  const AttentionErrors bad = exact.Compare({c.K(k_hat), c.V(c.v), {}, {}}, {2, 4}, false, 1);
  EXPECT_TRUE(std::isnan(bad.attention_kl.sum));
  EXPECT_TRUE(std::isnan(bad.output_error.Relative()));
}

TEST(AttentionReference, DoesNotDependOnThreads) {
  const Case c(9, 3, 16, 16, 300, 0, 35);
  const std::vector<float> k_hat = Perturbed(c.k, 0.3, 1);
  const std::vector<float> v_hat = Perturbed(c.v, 0.3, 2);
  const std::vector<int64_t> queries = ChooseQueries(300, 64, {8, 16}, true);
  std::vector<double> results;
  for (const int threads : {1, 2, 5}) {
    const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, threads, c.o_proj);
    const AttentionErrors e =
        exact.Compare({c.K(k_hat), c.V(v_hat), {}, {}}, {8, 16}, true, threads);
    for (const double x : {e.attention_kl.sum, e.logit_error.numerator, e.output_error.numerator,
                           e.projected_output_error.numerator, e.output_error.denominator}) {
      results.push_back(x);
    }
  }
  for (size_t i = 5; i < results.size(); ++i) EXPECT_EQ(results[i], results[i % 5]);
}

// A sink token that takes most of the attention: with the windows it is exact, without them its
// error decides the result.
TEST(AttentionReference, WindowsProtectAMassiveSink) {
  Case c(2, 1, 16, 16, 200, 0, 36);
  for (size_t d = 0; d < 16; ++d) c.k[d] = 12;
  for (size_t i = 0; i < c.q.size(); ++i) c.q[i] = std::abs(c.q[i]);
  std::vector<float> k_hat(c.k.size());
  SideScheme side;
  side.quantiser.clip = 0.9;
  c.k[3] = -12;
  Reconstruct(side, c.K(c.k), {k_hat.data(), 200, 1, 16}, 1);
  for (size_t d = 0; d < 16; ++d) k_hat[d] *= 0.8F;
  const std::vector<int64_t> queries = ChooseQueries(200, 32, {4, 8}, true);
  const AttentionReference exact(c.shape, c.Q(), c.K(c.k), c.V(c.v), queries, 1);
  const double with = exact.KeyKl(c.K(k_hat), {4, 8}, true, 1).Mean();
  const double without = exact.KeyKl(c.K(k_hat), {0, 8}, true, 1).Mean();
  EXPECT_GT(without, 3 * with);
}

TEST(ChooseQueries, AreEvenAndEndWithTheLast) {
  EXPECT_EQ(ChooseQueries(10, 4, {1, 2}, true), (std::vector<int64_t>{3, 5, 7, 9}));
  EXPECT_EQ(ChooseQueries(10, 3, {1, 2}, false), (std::vector<int64_t>{2, 5, 9}));
  EXPECT_EQ(ChooseQueries(321, 128, {}, true), (std::vector<int64_t>{320}));
  EXPECT_EQ(ChooseQueries(5, 100, {}, false).size(), 5U);
  for (const int64_t length : {322, 400, 2048}) {
    const std::vector<int64_t> queries = ChooseQueries(length, 128, {}, true);
    EXPECT_EQ(queries.back(), length - 1);
    EXPECT_GE(queries.front(), 320);
    EXPECT_EQ(queries.size(), static_cast<size_t>(std::min<int64_t>(128, length - 320)));
    for (size_t i = 1; i < queries.size(); ++i) EXPECT_LT(queries[i - 1], queries[i]);
  }
  for (const int64_t length : {0, 1, 320}) {
    try {
      ChooseQueries(length, 8, {}, true);
      FAIL() << length;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData);
      EXPECT_NE(std::string(error.what()).find("sink 64 and recent 256"), std::string::npos);
    }
  }
}

TEST(ChooseQueries, MeetFlushesAtEveryDistance) {
  const Windows windows{4, 16, 8};
  // Parts of 16 positions: equal steps would always meet the same distance.
  const int64_t length = windows.ShortestUseful() - 1 + 16 * 64;
  const std::vector<int64_t> queries = ChooseQueries(length, 64, windows, true);
  ASSERT_EQ(queries.size(), 64U);
  EXPECT_EQ(queries.back(), length - 1);
  std::set<int64_t> distances;
  for (size_t i = 0; i < queries.size(); ++i) {
    EXPECT_EQ((queries[i] - (windows.ShortestUseful() - 1)) / 16, static_cast<int64_t>(i));
    distances.insert(queries[i] - windows.RecentBegin(queries[i]));
  }
  EXPECT_EQ(distances.size(), 8U);
  EXPECT_EQ(ChooseQueries(length, 64, windows, true), queries);
  EXPECT_EQ(ChooseQueries(28, 9, windows, true), (std::vector<int64_t>{27}));
  EXPECT_THROW(ChooseQueries(27, 9, windows, true), Error);
}

TEST(ChooseQueries, SeeAQuantisedKeyThroughASlidingWindow) {
  // Of 8 queries in a row the first two after a flush see one.
  const Windows windows{4, 16, 8};
  for (const int64_t query : ChooseQueries(300, 1000, windows, true, 18)) {
    EXPECT_LT(query - windows.RecentBegin(query), 17) << query;
  }
  // The first flush is at 27: 34 times eight queries, and one more.
  EXPECT_EQ(ChooseQueries(300, 1000, windows, true, 18).size(), 34U * 2 + 1);
  EXPECT_EQ(ChooseQueries(300, 5, {4, 16}, true, 17), ChooseQueries(300, 5, {4, 16}, true));
  try {
    ChooseQueries(300, 5, windows, true, 16);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sliding window of 16 tokens"), std::string::npos);
  }
}

TEST(CompareRows, SeparatesRegions) {
  const std::vector<float> x(10 * 4, 1.0F);
  const std::vector<float> x_hat(10 * 4, 1.5F);
  const std::vector<float> rounded(10 * 4, 1.25F);
  const HeadRows<const float> view{x.data(), 10, 2, 2};
  const HeadRows<const float> changed{x_hat.data(), 10, 2, 2};
  const RowErrors windows = CompareRows(view, changed, {}, {2, 3}, true);
  EXPECT_EQ(windows.region[0].numerator, 0);
  EXPECT_EQ(windows.region[1].numerator, 0.25 * 5 * 4);
  EXPECT_EQ(windows.region[1].denominator, 5 * 4);
  EXPECT_EQ(windows.region[2].numerator, 0);
  EXPECT_EQ(windows.region[2].denominator, 3 * 4);
  EXPECT_DOUBLE_EQ(windows.total.Relative(), std::sqrt(0.25 * 5 / 10));
  EXPECT_EQ(CompareRows(view, changed, {}, {2, 3}, false).total.Relative(), 0.5);
  const RowErrors served = CompareRows(view, changed, {rounded.data(), 10, 2, 2}, {2, 3}, true);
  EXPECT_EQ(served.region[0].Relative(), 0.25);
  EXPECT_EQ(served.region[1].Relative(), 0.5);
}

TEST(ErrorRatio, DegenerateSums) {
  EXPECT_EQ((ErrorRatio{0, 0}).Relative(), 0);
  EXPECT_TRUE(std::isinf((ErrorRatio{1, 0}).Relative()));
  EXPECT_TRUE(std::isnan((ErrorRatio{std::nan(""), 0}).Relative()));
  EXPECT_EQ((ErrorRatio{4, 16}).Relative(), 0.5);
}

}  // namespace
}  // namespace oscar
