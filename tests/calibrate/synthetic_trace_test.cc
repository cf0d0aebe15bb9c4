// What other tests take on trust about made-up traces.
#include <gtest/gtest.h>

#include <vector>

#include "calibrate/synthetic_trace.h"
#include "support/process.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

TEST(SyntheticTraceTest, ThreadsDoNotMatter) {
  const fs::path folder = test::FreshFolder("synthetic-threads");
  test::SyntheticTrace spec{.layers = {0, 1, 2, 5, 7}};
  test::WriteSynthetic(spec, folder / "one");
  spec.threads = 3;
  test::WriteSynthetic(spec, folder / "three");
  EXPECT_EQ(test::Slurp(folder / "one"), test::Slurp(folder / "three"));
}

TEST(SyntheticTraceTest, TwoChannelsOfEveryHeadsKeysAreLarge) {
  const fs::path folder = test::FreshFolder("synthetic-outliers");
  constexpr double kOutlier = 100;
  test::WriteSynthetic({.key_outlier = kOutlier}, folder / "trace");
  const TraceReader trace(folder / "trace");
  const LayerShape& shape = trace.shape(0);
  const std::vector<float> k = trace.ReadRows(0, TraceReader::Rows::kK, 1);
  const auto tokens = static_cast<int64_t>(k.size()) / (shape.kv_heads * shape.k_dim);
  ASSERT_EQ(tokens, 64);
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    int64_t low = 0, high = 0;
    for (int64_t d = 0; d < shape.k_dim; ++d) {
      double mean = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        mean += static_cast<double>(
            k[static_cast<size_t>((t * shape.kv_heads + head) * shape.k_dim + d)]);
      }
      mean /= static_cast<double>(tokens);
      low += mean < -kOutlier / 2 ? 1 : 0;
      high += mean > kOutlier / 2 ? 1 : 0;
    }
    EXPECT_EQ(low, 1) << head;
    EXPECT_EQ(high, 1) << head;
  }
}

}  // namespace
}  // namespace oscar
