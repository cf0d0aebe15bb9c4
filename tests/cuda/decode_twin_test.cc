// The CPU twin of decode attention against float64 on the exactly reconstructed cache.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "gpu/decode_by_twin.h"
#include "gpu/decode_hard_cases.h"
#include "gpu/far_slots.h"
#include "gpu/round_trip.h"
#include "oscar/core/error.h"
#include "oscar/quant/quantiser.h"

namespace oscar::test {
namespace {

DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim = 128, int64_t groups = 1,
                  DType scale = DType::kF32) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, groups, scale};
  shape.q_heads = q_heads;
  return shape;
}

TEST(DecodeTwin, MeetsThePromisedAccuracy) {
  for (const DecodeShape& shape :
       {Shape(8, 2), Shape(16, 1), Shape(4, 4, 64), Shape(6, 2, 256), Shape(8, 2, 128, 4),
        Shape(8, 2, 128, 2, DType::kBF16), Shape(8, 2, 64, 1, DType::kF16)}) {
    DecodeCase c(shape, {{300, 20}, {0, 0}, {1, 0}, {0, 5}, {65, 0}}, 7);
    const Distance distance = Compare(Twin(c, 9), Reference(c));
    // Half-precision weights: 2^-11 of each code, of which o is a mean.
    EXPECT_LE(distance.output, 1e-3);
    EXPECT_LE(distance.lse, 1e-5);
  }
}

void ExpectClose(DecodeCase& c, int64_t blocks, const std::string& what) {
  SCOPED_TRACE(what);
  const Distance distance = Compare(Twin(c, blocks), Reference(c));
  EXPECT_LE(distance.output, 1e-3);
  EXPECT_LE(distance.lse, 1e-4);
}

TEST(DecodeTwin, ContextLengths) {
  for (const int64_t tokens : {1, 7, 8, 31, 32, 33, 63, 64, 65, 127, 320, 321, 1000, 4096}) {
    DecodeCase quantised(Shape(4, 1), {{tokens, 0}}, static_cast<uint64_t>(tokens));
    ExpectClose(quantised, 9, "quantised " + std::to_string(tokens));
    DecodeCase rows(Shape(4, 1), {{0, tokens}}, static_cast<uint64_t>(tokens));
    ExpectClose(rows, 9, "rows " + std::to_string(tokens));
    DecodeCase both(Shape(4, 1), {{tokens, 64}}, static_cast<uint64_t>(tokens));
    ExpectClose(both, 9, "both " + std::to_string(tokens));
  }
}

TEST(DecodeTwin, LongContexts) {
  DecodeCase c(Shape(2, 1), {{32768, 320}}, 9);
  ExpectClose(c, 50, "32K");
  DecodeCase equal(Shape(1, 1, 64), {{1 << 20, 0}}, 10);
  std::fill(equal.q.begin(), equal.q.end(), BFloat16{0});
  ExpectClose(equal, 264, "a million equal scores");
}

TEST(DecodeTwin, HeadCountsAndRaggedBatches) {
  for (const DecodeShape& shape : {Shape(40, 8), Shape(28, 4), Shape(12, 12), Shape(24, 2)}) {
    for (const size_t batch : {3UL, 8UL, 64UL}) {
      Random random(batch);
      std::vector<RequestLengths> lengths(1);
      while (lengths.size() < batch) {
        lengths.push_back(
            {static_cast<int64_t>(random.Below(40)), static_cast<int64_t>(random.Below(10))});
      }
      DecodeCase c(shape, lengths, 17, Pages::kShuffledSlots);
      c.wide_slots = batch == 8;
      ExpectClose(c, 20, std::to_string(shape.q_heads) + " heads, batch " + std::to_string(batch));
    }
  }
}

TEST(DecodeTwin, HardRows) {
  for (NamedDecodeCase& hard : HardDecodeCases(Shape(8, 2), 600)) ExpectClose(hard.c, 9, hard.name);
  for (NamedDecodeCase& hard : HardDecodeCases(Shape(4, 2, 64, 2), 200))
    ExpectClose(hard.c, 5, hard.name);
}

TEST(DecodeTwin, FarSlots) {
  DecodeCase c(Shape(8, 8), {{100, 9}}, 31);
  const DecodeResult near = Twin(c, 3);
  const CacheShape& s = c.shape.cache;
  const int64_t codes = s.heads * s.CodeBytes(), scales = s.heads * s.ScaleBytes();
  const int64_t row = s.heads * s.dim * 2;
  const auto far = [](const auto& small, int64_t slots, int64_t bytes) {
    auto memory = std::make_unique<SparseMemory>(
        slots * bytes + static_cast<int64_t>(small.size() * sizeof(small[0])));
    if (memory->data() != nullptr)
      std::memcpy(memory->data() + slots * bytes, small.data(), small.size() * sizeof(small[0]));
    return memory;
  };
  const auto k_codes = far(c.k_codes, kFarQuantised, codes);
  const auto v_codes = far(c.v_codes, kFarQuantised, codes);
  const auto k_scales = far(c.k_scale_bytes, kFarQuantised, scales);
  const auto v_scales = far(c.v_scale_bytes, kFarQuantised, scales);
  const auto k_rows = far(c.k_rows, kFarRows, row), v_rows = far(c.v_rows, kFarRows, row);
  for (const auto* memory : {&k_codes, &v_codes, &k_scales, &v_scales, &k_rows, &v_rows}) {
    if ((*memory)->data() == nullptr) GTEST_SKIP() << "no address space for far slots";
  }
  c.quantised_slots = Moved(c.quantised_slots, kFarQuantised);
  c.row_slots = Moved(c.row_slots, kFarRows);
  DecodeInputs in = c.HostInputs();
  in.quantised = {k_codes->data(), v_codes->data(), k_scales->data(), v_scales->data(),
                  kFarQuantised + c.quantised_pool};
  in.rows = {reinterpret_cast<BFloat16*>(k_rows->data()),
             reinterpret_cast<BFloat16*>(v_rows->data()), kFarRows + c.row_pool};
  DecodeResult found = near;
  DecodeTwin(c.shape, PlanDecode(c.shape, c.lengths, 3), in,
             {found.o.data(), DType::kF32, found.lse.data()});
  EXPECT_EQ(found.o, near.o);
  EXPECT_EQ(found.lse, near.lse);
}

// Written rows read back: attention over the rows as the quantiser of lib/oscar/quant stores them.
TEST(DecodeTwin, ReadsWhatTheWriteTwinWrote) {
  for (const double clip : kRoundTripClips) {
    RoundTrip trip(Shape(4, 2), 150, 10, clip, 40);
    trip.WriteOnHost();
    DecodeCase& c = trip.c;
    const DecodeResult found = Twin(c, 5);
    const auto stored = [&](const std::vector<BFloat16>& rows) {
      std::vector<float> x;
      for (const BFloat16 value : rows) x.push_back(ToFloat(value));
      const int64_t history = c.lengths[0].quantised * 2;
      QuantiserSpec spec;
      spec.group_size = 128;
      spec.clip = clip;
      std::vector<float> back(static_cast<size_t>(history * 128));
      Dequantise(Quantise({x.data(), history, 128}, spec, 1), {back.data(), history, 128});
      std::copy(back.begin(), back.end(), x.begin());
      return x;
    };
    const std::vector<float> k = stored(trip.k), v = stored(trip.v);
    DecodeResult expected{std::vector<float>(4 * 128), std::vector<float>(4)};
    for (size_t h = 0; h < 4; ++h) {
      double sum = 0;
      std::vector<double> o(128);
      for (size_t token = 0; token < 160; ++token) {
        const size_t at = (token * 2 + h / 2) * 128;
        double score = 0;
        for (size_t d = 0; d < 128; ++d) {
          score += static_cast<double>(ToFloat(c.q[h * 128 + d])) * static_cast<double>(k[at + d]);
        }
        const double p = std::exp(score * static_cast<double>(c.logit_scale));
        sum += p;
        for (size_t d = 0; d < 128; ++d) o[d] += p * static_cast<double>(v[at + d]);
      }
      expected.lse[h] = static_cast<float>(std::log(sum));
      for (size_t d = 0; d < 128; ++d) expected.o[h * 128 + d] = static_cast<float>(o[d] / sum);
    }
    const Distance distance = Compare(found, expected);
    EXPECT_LE(distance.output, 1e-3) << clip;
    EXPECT_LE(distance.lse, 1e-4) << clip;
  }
}

TEST(DecodeTwin, EmptyRequestsGiveZeroAndMinusInfinity) {
  DecodeCase c(Shape(8, 2), {{0, 0}, {10, 0}}, 9);
  for (const DecodeResult& result : {Twin(c, 3), Reference(c)}) {
    for (size_t i = 0; i < 8; ++i)
      EXPECT_EQ(result.lse[i], -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < 8 * 128; ++i) EXPECT_EQ(result.o[i], 0.0F);
    EXPECT_TRUE(std::isfinite(result.lse[8]));
  }
}

TEST(DecodeReference, EqualsOneTokensValue) {
  DecodeCase c(Shape(2, 1), {{1, 0}}, 10);
  const DecodeResult result = Reference(c);
  const int64_t slot = c.quantised_slots[0];
  for (int64_t d = 0; d < 128; ++d) {
    const int code = (c.Codes(true, slot, 0)[d % 32] >> (2 * (d / 32))) & 3;
    const float* scale = c.Scale(true, slot, 0);
    EXPECT_FLOAT_EQ(result.o[static_cast<size_t>(d)],
                    (static_cast<float>(code) - scale[1]) * scale[0]);
  }
}

TEST(DecodeReference, RotatesBack) {
  // R = a permutation: x' = x R moves channel d to (d + 1) mod D, so o R^T moves it back.
  DecodeCase c(Shape(2, 1, 64), {{20, 3}}, 11);
  const DecodeResult plain = Reference(c);
  c.v_rotation.assign(64 * 64, BFloat16{0});
  for (size_t d = 0; d < 64; ++d) c.v_rotation[d * 64 + (d + 1) % 64] = ToBFloat16(1.0F);
  const DecodeResult rotated = Reference(c);
  for (size_t d = 0; d < 64; ++d) EXPECT_EQ(rotated.o[d], plain.o[(d + 1) % 64]);
}

}  // namespace
}  // namespace oscar::test
