#include "oscar/metrics/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "oscar/metrics/row_kernels.h"
#include "oscar/metrics/selftest.h"

namespace oscar {
namespace {

TEST(Summary, MeanAndStandardError) {
  const std::vector<double> samples = {2, 4, 4, 6};
  const Summary summary = Summarize(samples);
  EXPECT_EQ(summary.mean, 4);
  EXPECT_EQ(summary.n, 4);
  EXPECT_DOUBLE_EQ(summary.se.value(), std::sqrt(8.0 / 3 / 4));
}

TEST(Summary, TooFewSamplesHaveNoStandardError) {
  const std::vector<double> one = {3};
  EXPECT_EQ(Summarize(one).mean, 3);
  EXPECT_EQ(Summarize(one).n, 1);
  EXPECT_FALSE(Summarize(one).se.has_value());
  EXPECT_EQ(Summarize({}).n, 0);
  EXPECT_FALSE(Summarize({}).se.has_value());
}

TEST(Summary, NanIsNotHidden) {
  const std::vector<double> samples = {1, std::nan(""), 2};
  EXPECT_TRUE(std::isnan(Summarize(samples).mean));
  EXPECT_TRUE(std::isnan(Summarize(samples).se.value()));
}

TEST(SummarizeRatio, SharedVariationCancels) {
  const std::vector<double> b = {1, 2, 5, 9};
  const std::vector<double> a = {0.5, 1, 2.5, 4.5};
  EXPECT_DOUBLE_EQ(SummarizeRatio(a, b).mean, 0.5);
  EXPECT_NEAR(SummarizeRatio(a, b).se.value(), 0, 1e-15);
  const std::vector<double> c = {2, 2, 2, 4};
  // r = 10/17; residuals a - r b with sample variance, over sqrt(4) and mean(b).
  const double r = 10.0 / 17;
  double squares = 0;
  for (size_t i = 0; i < 4; ++i) squares += std::pow(c[i] - r * b[i], 2);
  EXPECT_NEAR(SummarizeRatio(c, b).se.value(), std::sqrt(squares / 3 / 4) / 4.25, 1e-15);
}

TEST(SummarizeRatio, DegenerateMeans) {
  const std::vector<double> zero = {0, 0};
  const std::vector<double> one = {1, 1};
  EXPECT_EQ(SummarizeRatio(zero, zero).mean, 1);
  EXPECT_TRUE(std::isinf(SummarizeRatio(one, zero).mean));
}

TEST(SelfTest, EveryInjectionIsFound) {
  std::set<std::string> metrics;
  for (const SelfTestResult& result : RunMetricSelfTests()) {
    metrics.insert(result.metric);
    EXPECT_TRUE(result.passed()) << result.metric << ", " << result.injection << ": expected "
                                 << result.expected << ", found " << result.found;
  }
  for (const char* name : {"key_error", "value_error", "logit_error", "attention_kl",
                           "output_error", "projected_output_error", "matched_noise",
                           "region_logit_error", "region_kl", "region_mass", "standard_error"}) {
    EXPECT_TRUE(metrics.contains(name)) << name;
  }
}

TEST(SelfTest, NanDoesNotPass) {
  SelfTestResult result;
  result.found = std::nan("");
  result.tolerance = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(result.passed());
}

TEST(RowKernels, ExponentialsAreAccurate) {
  const RowKernels& kernels = ChosenRowKernels();
  std::vector<float> l;
  for (double x = -745; x < 709; x += 0.37) l.push_back(static_cast<float>(x));
  for (const float x : {0.0F, -0.0F, 1e-30F, -708.0F, -709.0F, 709.0F}) l.push_back(x);
  l.push_back(-std::numeric_limits<float>::infinity());
  const std::vector<float> d(l.size(), 0.0F);
  std::vector<double> p(l.size());
  std::vector<double> e(l.size());
  const auto n = static_cast<int64_t>(l.size());
  kernels.exponentials(l.data(), d.data(), n, 0, 0, p.data(), e.data());
  for (size_t i = 0; i < l.size(); ++i) {
    const double expected = l[i] < -708 ? 0 : std::exp(static_cast<double>(l[i]));
    EXPECT_NEAR(p[i], expected, 4 * 0x1p-53 * expected) << l[i];
    EXPECT_EQ(p[i], e[i]) << l[i];
  }
  const std::vector<float> nan = {std::numeric_limits<float>::quiet_NaN()};
  kernels.exponentials(nan.data(), d.data(), 1, 0, 0, p.data(), e.data());
  EXPECT_TRUE(std::isnan(p[0]));
}

}  // namespace
}  // namespace oscar
