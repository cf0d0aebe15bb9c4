// Equal inputs, options and thread counts give equal files, from text to verdict; what another
// number of threads may change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/pipeline.h"
#include "oscar/core/value.h"
#include "oscar/trace/trace.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::Pipeline;
using test::ReadRecord;
using Rows = TraceReader::Rows;

constexpr const char* kThreads = "2";
constexpr const char* kOtherThreads = "3";

// Equal text once the volatile parts are gone; says where records differ, not all they hold.
void ExpectSameRecord(Value a, Value b, const std::string& where) {
  EXPECT_EQ(a.MutableObject().erase("volatile"), 1U) << where;
  EXPECT_EQ(b.MutableObject().erase("volatile"), 1U) << where;
  EXPECT_THAT(DescribeDifferences(a, b, 8), testing::IsEmpty()) << where;
  EXPECT_TRUE(a.ToJson() == b.ToJson()) << where;
}

TEST_F(Pipeline, TwoRunsGiveTheSameFiles) {
  Everything("a", kThreads);
  Everything("b", kThreads);
  const auto a = test::Snapshot(folder_ / "a"), b = test::Snapshot(folder_ / "b");
  ASSERT_EQ(a.size(), 6U);  // two traces, K file, V file, manifest, report
  ASSERT_EQ(b.size(), a.size());
  for (const auto& [name, bytes] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    if (name == "report" || name.ends_with(".json")) {
      ExpectSameRecord(Value::FromJson(bytes, name), Value::FromJson(b.at(name), name), name);
    } else {
      EXPECT_TRUE(bytes == b.at(name)) << name << " differs";
    }
  }
}

double Norm(const std::vector<double>& x) {
  double square = 0;
  for (const double value : x) square += value * value;
  return std::sqrt(square);
}

// LibTorch may split a float32 sum by threads. Activations then move by some units of float32
// roundoff, 6e-8, in each of a few layers: 1e-5 of the norm leaves two orders.
constexpr double kActivations = 1e-5;

void ExpectCloseRows(const TraceReader& a, const TraceReader& b, int layer, Rows which,
                     size_t sequence) {
  const std::vector<float> x = a.ReadRows(layer, which, sequence);
  const std::vector<float> y = b.ReadRows(layer, which, sequence);
  ASSERT_EQ(x.size(), y.size());
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < x.size(); ++i) {
    // Rows are rounded to bfloat16: neighbours lie up to 2^-7 apart.
    ASSERT_NEAR(x[i], y[i], 0x1p-7 * std::abs(x[i]) + kActivations * largest)
        << "layer " << layer << " sequence " << sequence << " element " << i;
  }
}

TEST_F(Pipeline, OtherThreadsMoveTracesByRoundoffOnly) {
  Dump("a", kThreads);
  Dump("b", kOtherThreads);
  for (const char* name : {"text.trace.h5", "heldout.trace.h5"}) {
    const TraceReader a(folder_ / "a" / name), b(folder_ / "b" / name);
    ASSERT_EQ(a.header().layers, b.header().layers);
    ASSERT_EQ(a.header().ngram_hashes, b.header().ngram_hashes);
    ASSERT_EQ(a.row_tokens(), b.row_tokens());
    EXPECT_GT(a.row_tokens(), 0);
    for (const int layer : a.header().layers) {
      const LayerMoments x = a.ReadMoments(layer), y = b.ReadMoments(layer);
      EXPECT_EQ(x.count, y.count);
      ASSERT_EQ(x.sums.size(), y.sums.size());
      for (const auto& [moment, tensor] : x.sums) {
        std::vector<double> difference = tensor.data;
        for (size_t i = 0; i < difference.size(); ++i) difference[i] -= y.At(moment).data[i];
        // Second moments move twice as much as rows, sst by its two factors of q, k and v.
        EXPECT_LE(Norm(difference), 6 * kActivations * Norm(tensor.data))
            << name << " layer " << layer << " " << InfoOf(moment).name;
      }
      for (size_t s = 0; s < a.header().sequences.size(); ++s) {
        if (!a.header().sequences[s].has_rows) continue;
        for (const Rows which : {Rows::kQ, Rows::kK, Rows::kV}) {
          ExpectCloseRows(a, b, layer, which, s);
        }
      }
    }
  }
}

// Means of metrics, wherever they stand in `a`; returns their number.
int ExpectCloseMeans(const Value& a, const Value& b, double relative, const std::string& where) {
  int compared = 0;
  if (a.is_array()) {
    EXPECT_EQ(a.AsArray().size(), b.AsArray().size()) << where;
    for (size_t i = 0; i < a.AsArray().size(); ++i) {
      compared += ExpectCloseMeans(a.AsArray()[i], b.AsArray().at(i), relative,
                                   where + "/" + std::to_string(i));
    }
  } else if (a.is_object()) {
    for (const auto& [key, value] : a.AsObject()) {
      if (key == "mean" && value.is_number()) {
        const double x = value.AsDouble();
        EXPECT_NEAR(b.At(key).AsDouble(), x, relative * std::abs(x) + 1e-6) << where;
        ++compared;
      } else {
        compared += ExpectCloseMeans(value, b.At(key), relative, where + "/" + key);
      }
    }
  }
  return compared;
}

TEST_F(Pipeline, OtherThreadsGiveTheSameRotationsAndMetrics) {
  Everything("a", kThreads);
  Calibrate("a", "b", kOtherThreads);
  for (const auto& [name, bytes] : test::Snapshot(folder_ / "b" / "entry")) {
    const std::string before = test::Slurp(folder_ / "a" / "entry" / name);
    if (name == "manifest.json") {
      ExpectSameRecord(Value::FromJson(before, name), Value::FromJson(bytes, name), name);
    } else {
      EXPECT_TRUE(bytes == before) << name << " differs";
    }
  }

  // What traces alone give does not pass through LibTorch.
  Verify("a", "a", kThreads, false);
  Verify("a", "b", kOtherThreads, false);
  ExpectSameRecord(ReadRecord(Path("a/report")), ReadRecord(Path("b/report")), "report");

  // The model's run does, and a code flips where a value lies within roundoff of the middle between
  // two: about one of 1e5 values, and one flip is far below a thousandth of any error.
  Verify("a", "a", kThreads, true);
  Verify("a", "b", kOtherThreads, true);
  const Value a = ReadRecord(Path("a/report")), b = ReadRecord(Path("b/report"));
  EXPECT_GT(ExpectCloseMeans(a.At("schemes"), b.At("schemes"), 1e-3, "schemes"), 0);
}

}  // namespace
}  // namespace oscar
