// Decode attention on the device by plans of every kind: how tokens are split, what a captured
// graph takes later, and the sums of few and of many partial results.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gpu/decode_exact_cases.h"
#include "gpu/decode_plans.h"
#include "gpu/expect_close.h"

namespace oscar::test {
namespace {

TEST(DecodeGpu, SplitsDoNotMatter) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{5000, 320}, {40, 7}, {900, 0}}, 12);
  DeviceDecode device(c);
  const DecodeResult first = device.Run();
  const DecodeResult reference = Reference(c);
  for (const int64_t used : {1, 2, 7, 50}) {
    for (const int64_t heads : {8, 4}) {
      const DecodeResult result = device.Run(PlanOn(device, c, used, heads));
      EXPECT_LE(Compare(result, reference).output, kOutputBound) << used << " " << heads;
      EXPECT_LE(Compare(result, first).output, kSplitBound) << used << " " << heads;
      EXPECT_LE(Compare(result, first).lse, 1e-5) << used << " " << heads;
    }
  }
}

// Where half precision holds the weights, splits differ by float32 roundings and by the logarithms
// and exponentials of the device, below 2^-20, with which partial results are weighed.
TEST(DecodeGpu, SplitsOfExactWeightsDoNotMatter) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    DecodeCase c = ExactWeightsCase(dim, {{900, 0}, {40, 0}});
    DeviceDecode device(c);
    const DecodePlan whole = PlanOn(device, c, 1);
    const DecodeResult first = device.Run(whole);
    const DecodeResult reference = Reference(c);
    EXPECT_LE(Compare(first, reference).output, 1e-5) << dim;
    // Down to so many partial results that some warps of a team take turns and some do not.
    for (const int32_t tokens : {300, 64, 7, 5}) {
      const DecodeResult result = device.Run(CutPlan(whole, tokens));
      EXPECT_LE(Compare(result, first).output, 1e-5) << dim << " " << tokens;
      EXPECT_LE(Compare(result, reference).lse, 1e-5) << dim << " " << tokens;
    }
  }
}

TEST(DecodeGpu, SamePlanSameBits) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{5000, 320}, {40, 7}, {900, 0}}, 13);
  DeviceDecode device(c);
  const DecodeResult first = device.Run();
  for (int i = 0; i < 5; ++i) {
    const DecodeResult again = device.RunPlanned();
    EXPECT_EQ(first.o, again.o);
    EXPECT_EQ(first.lse, again.lse);
  }
}

// Launches that begin while those before run, for few requests and for many; blocks have more tiles
// than they may fetch early.
TEST(DecodeGpu, SettledCachesMayBeFetchedEarly) {
  OSCAR_NEED_DEVICE();
  for (const std::vector<RequestLengths>& lengths :
       {std::vector<RequestLengths>{{40000, 320}},
        std::vector<RequestLengths>(40, RequestLengths{2500, 30})}) {
    DecodeCase c(Shape(32, 8), lengths, 22);
    DeviceDecode device(c);
    device.inputs().quantised_settled = device.inputs().rows_settled = true;
    const DecodeResult reference = Reference(c);
    // Pieces of a few tiles and of many, of which more are fetched early.
    for (const int64_t used : {device.workspace().blocks(), int64_t{20}}) {
      for (const int64_t heads : {8, 4}) {
        device.Run(PlanOn(device, c, used, heads));
        for (int i = 0; i < 20; ++i) {
          LaunchDecode(device.workspace(), device.inputs(), device.outputs(),
                       device.stream().get());
        }
        device.stream().Synchronize();
        EXPECT_LE(Compare(device.Result(), reference).output, kOutputBound)
            << lengths.size() << " " << used << " " << heads;
      }
    }
  }
}

TEST(DecodeGpu, GraphFollowsNewPlans) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{3000, 320}, {700, 7}}, 14);
  DeviceDecode device(c);
  // Captured while there is nobody to serve.
  device.workspace().Plan({}, device.stream().get());
  device.stream().Synchronize();
  const DeviceGraph graph(device.stream(), [&](Stream stream) {
    LaunchDecode(device.workspace(), device.inputs(), device.outputs(), stream);
  });
  graph.Launch(device.stream());
  device.workspace().Plan(c.lengths, device.stream().get());
  graph.Launch(device.stream());
  device.stream().Synchronize();
  EXPECT_LE(Compare(device.Result(), Reference(c)).output, kOutputBound);
  // The second request shrinks; the lists stay, so its slots are those of the first 150 tokens.
  c.lengths[1] = {150, 3};
  device.workspace().Plan(c.lengths, device.stream().get());
  graph.Launch(device.stream());
  device.stream().Synchronize();
  EXPECT_LE(Compare(device.Result(), Reference(c)).output, kOutputBound);
}

// The sums of one long request and those of many short ones are divided otherwise, and plans differ
// in the heads of a block: a graph captured with one plan runs any other, with more requests or
// with fewer.
TEST(DecodeGpu, GraphTakesPlansOfTheOtherKind) {
  OSCAR_NEED_DEVICE();
  std::vector<RequestLengths> many = {{4096, 33}, {0, 0}};
  for (int64_t i = 0; i < 38; ++i) many.push_back({20 + 7 * i, i % 3});
  const std::vector<RequestLengths> one(many.begin(), many.begin() + 1);
  for (const auto& [captured, later] : {std::pair(one, many), std::pair(many, one)}) {
    DecodeCase c(Shape(32, 8), many, 21);
    DeviceDecode device(c);
    int64_t heads = 8;
    const auto plan = [&](const std::vector<RequestLengths>& lengths) {
      c.lengths = lengths;
      heads = 12 - heads;
      device.workspace().SetPlan(PlanOn(device, c, device.workspace().blocks(), heads),
                                 device.stream().get());
    };
    plan(captured);
    device.stream().Synchronize();
    const DeviceGraph graph(device.stream(), [&](Stream stream) {
      LaunchDecode(device.workspace(), device.inputs(), device.outputs(), stream);
    });
    for (const auto& lengths : {captured, later, captured, later}) {
      plan(lengths);
      graph.Launch(device.stream());
      device.stream().Synchronize();
      const Distance distance = Compare(device.Result(), Reference(c));
      EXPECT_LE(distance.output, kOutputBound) << lengths.size();
      EXPECT_LE(distance.lse, kLseBound) << lengths.size();
    }
  }
}

// A plan made elsewhere may give the piece of a request without tokens to either tier.
TEST(DecodeGpu, EmptyPiecesOfEitherTier) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{300, 0}, {0, 0}, {20, 20}}, 24);
  DeviceDecode device(c);
  const DecodeResult reference = Reference(c);
  for (const Tier tier : {Tier::kQuantised, Tier::kRows}) {
    DecodePlan plan = PlanOn(device, c, device.workspace().blocks());
    for (PlanPiece& piece : plan.pieces) {
      if (piece.tokens == 0) piece.tier = tier;
    }
    const Distance distance = Compare(device.Run(std::move(plan)), reference);
    EXPECT_LE(distance.output, kOutputBound);
    EXPECT_LE(distance.lse, kLseBound);
  }
}

// Launches in one graph that add up other results each, of few requests and of more; the workspace
// goes from one kind of plan to the other and back.
TEST(DecodeGpu, SumsTakeTheResultsOfTheirOwnLaunch) {
  OSCAR_NEED_DEVICE();
  std::vector<RequestLengths> many(12, {200, 0});
  many[0] = {8000, 40};
  many[1] = {300, 7};
  DecodeCase c(Shape(32, 8), many, 23);
  DeviceDecode device(c);
  std::vector<BFloat16> other = c.q;
  for (BFloat16& x : other) x = ToBFloat16(-0.5F * ToFloat(x));
  const DeviceBuffer others = ToDevice(other);
  const BFloat16* const queries[2] = {device.inputs().q, others.As<BFloat16>()};
  constexpr int kLaunches = 40;
  const DeviceBuffer outputs(kLaunches * c.outputs() * 4), lses(kLaunches * c.rows() * 4);
  device.workspace().Plan(many, device.stream().get());
  const DeviceGraph graph(device.stream(), [&](Stream stream) {
    for (int i = 0; i < kLaunches; ++i) {
      device.inputs().q = queries[static_cast<size_t>(i % 2)];
      LaunchDecode(
          device.workspace(), device.inputs(),
          {outputs.As<float>() + i * c.outputs(), DType::kF32, lses.As<float>() + i * c.rows()},
          stream);
    }
  });
  for (const std::ptrdiff_t requests : {2, 12, 1, 12, 2}) {
    const std::vector<RequestLengths> lengths(many.begin(), many.begin() + requests);
    device.workspace().Plan(lengths, device.stream().get());
    for (int i = 0; i < 3; ++i) graph.Launch(device.stream());
    device.stream().Synchronize();
    const std::vector<float> all = FromDevice<float>(outputs, kLaunches * c.outputs());
    const std::vector<float> all_lses = FromDevice<float>(lses, kLaunches * c.rows());
    DecodeResult expected[2];
    for (size_t i = 0; i < 2; ++i) {
      device.inputs().q = queries[i];
      expected[i] = device.RunPlanned();
    }
    const std::ptrdiff_t rows = requests * c.shape.q_heads;
    for (int i = 0; i < kLaunches; ++i) {
      const DecodeResult& want = expected[i % 2];
      EXPECT_TRUE(std::equal(want.o.begin(), want.o.begin() + rows * c.shape.cache.dim,
                             all.begin() + i * c.outputs()))
          << requests << " " << i;
      EXPECT_TRUE(
          std::equal(want.lse.begin(), want.lse.begin() + rows, all_lses.begin() + i * c.rows()))
          << requests << " " << i;
    }
  }
}

// Partial results are added up in other ways for few rows of output and for many, from one row to
// more than a device has warps for, with none to more than a round of them.
TEST(DecodeGpu, SumsOfFewAndManyRows) {
  OSCAR_NEED_DEVICE();
  struct Batch {
    int64_t requests, tokens;
  };
  for (const DecodeShape& shape : {Shape(32, 8), Shape(64, 8), Shape(1, 1), Shape(16, 4, 64),
                                   Shape(8, 4, 256), Shape(12, 12)}) {
    for (const auto& [requests, tokens] :
         {Batch{1, 9001}, Batch{2, 4003}, Batch{5, 1600}, Batch{9, 777}, Batch{35, 130}}) {
      std::vector<RequestLengths> lengths;
      for (int64_t i = 0; i < requests; ++i) lengths.push_back({tokens + 9 * i, i % 4 * 5});
      lengths[static_cast<size_t>(requests / 2)] = {0, 0};
      if (requests == 1) lengths[0] = {tokens, 70};
      DecodeCase c(shape, lengths, static_cast<uint64_t>(requests));
      ExpectClose(c, Name(shape) + "_" + std::to_string(requests));
    }
  }
}

}  // namespace
}  // namespace oscar::test
