#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oscar/core/error.h"
#include "support/golden.h"
#include "trace/fake_trace.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FakeHeader;
using test::FakeLayer;
using test::FakeShape;
using test::FreshFolder;
using test::Thrown;
using test::WriteFakeTrace;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TraceSet, AddsMomentsOfAllTraces) {
  const fs::path folder = FreshFolder("set_add");
  const TraceHeader a = FakeHeader({20, 7}, 1, {0, 3}, 1);
  const TraceHeader b = FakeHeader({11}, 0, {0, 3}, 2);
  WriteFakeTrace(folder / "a.h5", a);
  WriteFakeTrace(folder / "b.h5", b);
  const TraceSet set({folder / "a.h5", folder / "b.h5"});
  EXPECT_THAT(set.layers(), ElementsAre(0, 3));
  for (const int layer : {0, 3}) {
    const LayerMoments merged = set.Moments(layer);
    EXPECT_EQ(merged.count, 38U);
    const LayerCapture la = FakeLayer(layer, a);
    const LayerCapture lb = FakeLayer(layer, b);
    for (const Moment id : {Moment::kQq, Moment::kKk, Moment::kVv}) {
      for (size_t i = 0; i < merged.At(id).data.size(); ++i) {
        EXPECT_EQ(merged.At(id).data[i], la.moments.At(id).data[i] + lb.moments.At(id).data[i]);
      }
    }
    EXPECT_FALSE(merged.Has(Moment::kSst));  // some tokens have no rows
  }
}

TEST(TraceSet, OneTraceKeepsItsOwnSst) {
  const fs::path file = FreshFolder("set_one") / "a.h5";
  const TraceHeader a = FakeHeader({20, 7}, 0, {0}, 1);
  WriteFakeTrace(file, a);
  EXPECT_EQ(TraceSet({file}).Moments(0).At(Moment::kSst).data,
            FakeLayer(0, a).moments.At(Moment::kSst).data);
}

// sst of the union from its definition: w = mean over all query tokens and group heads of (q.k)^2.
TEST(TraceSet, RecomputesSstFromRowsWhenEveryTokenHasThem) {
  const fs::path folder = FreshFolder("set_sst");
  const TraceHeader headers[] = {FakeHeader({20, 7}, 2, {0}, 1), FakeHeader({11}, 1, {0}, 2)};
  WriteFakeTrace(folder / "a.h5", headers[0]);
  WriteFakeTrace(folder / "b.h5", headers[1]);
  const LayerShape shape = FakeShape();
  std::vector<BFloat16> q, k, v;
  for (const TraceHeader& header : headers) {
    const LayerCapture layer = FakeLayer(0, header);
    q.insert(q.end(), layer.q.begin(), layer.q.end());
    k.insert(k.end(), layer.k.begin(), layer.k.end());
    v.insert(v.end(), layer.v.begin(), layer.v.end());
  }
  const size_t tokens = 38;
  const LayerMoments merged = TraceSet({folder / "a.h5", folder / "b.h5"}).Moments(0);
  ASSERT_TRUE(merged.Has(Moment::kSst));
  EXPECT_EQ(merged.sst_qq_hash, HashOf(merged.At(Moment::kQq)));
  const auto at = [](const std::vector<BFloat16>& x, size_t i) {
    return static_cast<double>(ToFloat(x[i]));
  };
  for (size_t h = 0; h < 2; ++h) {
    std::vector<double> expected(9, 0);
    double weight_sum = 0;
    for (size_t t = 0; t < tokens; ++t) {
      double w = 0;
      for (size_t s = 0; s < tokens; ++s) {
        for (size_t g = 0; g < 2; ++g) {
          double dot = 0;
          for (size_t d = 0; d < 6; ++d) {
            dot += at(q, (s * 4 + h * 2 + g) * 6 + d) * at(k, (t * 2 + h) * 6 + d);
          }
          w += dot * dot;
        }
      }
      w /= static_cast<double>(tokens * 2);
      weight_sum += w;
      for (size_t i = 0; i < 9; ++i) {
        expected[i] += w * at(v, (t * 2 + h) * 3 + i / 3) * at(v, (t * 2 + h) * 3 + i % 3);
      }
    }
    // A few hundred float64 operations per entry, all weights positive: relative to the trace.
    const double scale = expected[0] + expected[4] + expected[8];
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_NEAR(merged.At(Moment::kSst).data[h * 9 + i], expected[i], 1e-13 * scale);
    }
    EXPECT_NEAR(merged.At(Moment::kSstWeight).data[h], weight_sum, 1e-13 * weight_sum);
  }
  EXPECT_EQ(merged.shape, shape);
}

TEST(TraceSet, LayersMayBeSpreadOverTraces) {
  const fs::path folder = FreshFolder("set_shards");
  WriteFakeTrace(folder / "a.h5", FakeHeader({20}, 0, {0, 1}, 1));
  WriteFakeTrace(folder / "b.h5", FakeHeader({20}, 0, {1, 2}, 1));
  const TraceSet set({folder / "a.h5", folder / "b.h5"});
  EXPECT_THAT(set.layers(), ElementsAre(0, 1, 2));
  EXPECT_EQ(set.Moments(0).count, 20U);
  EXPECT_EQ(set.Moments(1).count, 40U);
  EXPECT_EQ(Thrown([&] { set.Moments(3); }).code(), ErrorCode::kData);
}

TEST(TraceSet, RefusesTracesOfAnotherModel) {
  const fs::path folder = FreshFolder("set_other");
  WriteFakeTrace(folder / "a.h5", FakeHeader({20}, 0, {0}, 1));
  const auto refuse = [&](const TraceHeader& header, const std::string& part) {
    fs::remove(folder / "b.h5");
    WriteFakeTrace(folder / "b.h5", header);
    const Error error = Thrown([&] { TraceSet set({folder / "a.h5", folder / "b.h5"}); });
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(), HasSubstr("b.h5"));
    EXPECT_THAT(error.what(), HasSubstr(part));
  };
  for (const char* key : {"model_id", "config_hash", "capture_point"}) {
    TraceHeader header = FakeHeader({20}, 0, {0}, 1);
    header.manifest[key] = "other";
    refuse(header, key);
  }
  const TraceHeader header = FakeHeader({20}, 0, {0}, 1);
  fs::remove(folder / "b.h5");
  LayerCapture layer = FakeLayer(0, header);
  layer.moments.shape.softmax_scale = 0.5;
  TraceWriter writer(folder / "b.h5", header, false, false);
  writer.WriteLayer(layer);
  writer.Finish();
  const Error error = Thrown([&] { TraceSet set({folder / "a.h5", folder / "b.h5"}); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("layer 0"));
  EXPECT_THAT(error.what(), HasSubstr("softmax scale 0.25 and 0.5"));
  EXPECT_EQ(Thrown([] { TraceSet set(std::vector<fs::path>{}); }).code(), ErrorCode::kUsage);
}

}  // namespace
}  // namespace oscar
