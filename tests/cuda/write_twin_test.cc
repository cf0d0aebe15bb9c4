// The CPU twin of the write kernel against the quantiser of lib/oscar/quant, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/write_case.h"
#include "oscar/core/error.h"
#include "oscar/cuda/twin.h"
#include "oscar/quant/quantiser.h"

namespace oscar::test {
namespace {

float ScaleAt(const std::vector<uint8_t>& bytes, DType type, size_t index) {
  if (type == DType::kF32) {
    float x;
    std::memcpy(&x, bytes.data() + 4 * index, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes.data() + 2 * index, 2);
  return type == DType::kF16 ? ToFloat(Float16{bits}) : ToFloat(BFloat16{bits});
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

TEST(WriteTwin, EqualsTheQuantiser) {
  constexpr int64_t tokens = 120, heads = 2;
  for (const int64_t dim : {64, 128, 256}) {
    Random random(static_cast<uint64_t>(dim));
    const std::vector<BFloat16> rows = HardRows(random, tokens * heads, dim);
    std::vector<float> widened;
    for (const BFloat16 x : rows) widened.push_back(ToFloat(x));
    for (const int64_t groups : {1, 2, 4, 8, 16}) {
      if (dim / groups < 16) continue;
      for (const double clip : {0.0, 0.5, 0.92, 0.96, 0.999, 1.0}) {
        for (const ClipRule rule : {ClipRule::kOrderStatistic, ClipRule::kBisection}) {
          for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
            const CacheShape shape{heads, dim, groups, type};
            std::vector<int64_t> slots;
            for (int64_t i = 0; i < tokens; ++i) slots.push_back(tokens - 1 - i);
            std::vector<uint8_t> codes(static_cast<size_t>(tokens * heads * shape.CodeBytes()));
            std::vector<uint8_t> scales(static_cast<size_t>(tokens * heads * shape.ScaleBytes()));
            WriteJob job;
            job.rows = rows.data();
            job.tokens = tokens;
            job.heads = heads;
            job.slots = {slots.data(), DType::kI64};
            job.codes = codes.data();
            job.scales = scales.data();
            job.clip_index = ClipIndexOf(clip, dim);
            job.clip_rule = rule;
            WriteTwin(shape, {&job, 1});

            QuantiserSpec spec;
            spec.group_size = dim / groups;
            spec.clip = clip;
            spec.clip_mode = rule == ClipRule::kBisection ? ClipMode::kBisect : ClipMode::kSort;
            spec.scale_type = type == DType::kF32   ? ScaleType::kF32
                              : type == DType::kF16 ? ScaleType::kF16
                                                    : ScaleType::kBF16;
            const QuantisedRows expected = Quantise({widened.data(), tokens * heads, dim}, spec, 1);
            for (int64_t i = 0; i < tokens * heads; ++i) {
              const int64_t at = slots[static_cast<size_t>(i / heads)] * heads + i % heads;
              ASSERT_EQ(
                  std::memcmp(codes.data() + at * dim / 4, expected.packed.data() + i * dim / 4,
                              static_cast<size_t>(dim / 4)),
                  0)
                  << "row " << i << " dim " << dim << " clip " << clip;
              for (int64_t g = 0; g < groups; ++g) {
                const auto from = static_cast<size_t>(i * groups + g);
                const auto to = static_cast<size_t>((at * groups + g) * 2);
                ASSERT_TRUE(SameBits(ScaleAt(scales, type, to), expected.scale[from]))
                    << "row " << i;
                ASSERT_TRUE(SameBits(ScaleAt(scales, type, to + 1), expected.zero[from]))
                    << "row " << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(WriteTwin, ClipIndexEqualsTheQuantisers) {
  for (const int64_t dim : {64, 128, 256}) {
    for (double ratio = -0.1; ratio < 1.2; ratio += 0.01) {
      EXPECT_EQ(ClipIndexOf(ratio, dim), ClipIndex(ratio, dim)) << ratio;
    }
  }
}

TEST(WriteTwin, KeepsWindowRowsAndDropsWhatHasNoDestination) {
  const CacheShape shape{1, 64, 1, DType::kF32};
  Random random(1);
  const std::vector<BFloat16> rows = HardRows(random, 3, 64);
  const std::vector<int32_t> slots = {2, 11, 10};  // slots from 10 on are the bf16 tier
  std::vector<uint8_t> codes(8 * 16, 0xaa), scales(8 * 8, 0xaa);
  std::vector<BFloat16> kept(2 * 64, BFloat16{0xaaaa});
  WriteJob job;
  job.rows = rows.data();
  job.tokens = 3;
  job.heads = 1;
  job.slots = {slots.data(), DType::kI32};
  job.row_slot_offset = 10;
  job.codes = codes.data();
  job.scales = scales.data();
  job.out_rows = kept.data();
  WriteTwin(shape, {&job, 1});
  for (size_t d = 0; d < 64; ++d) {
    EXPECT_EQ(kept[d].bits, rows[2 * 64 + d].bits);
    EXPECT_EQ(kept[64 + d].bits, rows[64 + d].bits);
  }
  int written = 0;
  for (const uint8_t byte : codes) written += byte != 0xaa ? 1 : 0;
  EXPECT_LE(written, 16);
  EXPECT_GT(written, 0);
}

// As graphs of a fixed batch fill their lists up.
TEST(WriteTwin, NegativeSlotsDropTheirTokens) {
  test::WriteCase c({2, 64, 1, DType::kF32}, 9, 2);
  c.KeepEveryThird();
  const Written whole = OnHost(c);
  c.DropEveryFourth();
  const Written some = OnHost(c);
  const auto row = [](const auto& numbers, int64_t index, int64_t length) {
    return std::vector(numbers.begin() + index * length, numbers.begin() + (index + 1) * length);
  };
  const Written blank = Blank(c);
  for (int64_t i = 0; i < c.guard; ++i) {
    EXPECT_EQ(row(some.codes, i, 32), row(blank.codes, i, 32)) << i;
    EXPECT_EQ(row(some.scales, i, 16), row(blank.scales, i, 16)) << i;
  }
  for (int64_t slot = 0; slot < c.pool; ++slot) {
    const bool named = std::ranges::find(c.slots, slot) != c.slots.end();
    const Written& expected = named ? whole : blank;
    EXPECT_EQ(row(some.codes, c.guard + slot, 32), row(expected.codes, slot, 32)) << slot;
    EXPECT_EQ(row(some.scales, c.guard + slot, 16), row(expected.scales, slot, 16)) << slot;
  }
  for (int64_t slot = 0; slot < c.row_pool; ++slot) {
    const bool named = std::ranges::find(c.slots, c.pool + slot) != c.slots.end();
    const auto found = row(some.rows, slot, 128),
               wanted = row((named ? whole : blank).rows, slot, 128);
    for (size_t d = 0; d < 128; ++d) EXPECT_EQ(found[d].bits, wanted[d].bits) << slot;
  }
}

// Two rows, and what two tokens of theirs leave in bf16 rows for `pool` tokens.
struct TwoTokens {
  std::vector<BFloat16> rows, kept;
  WriteJob job;

  explicit TwoTokens(size_t pool) : kept(pool * 64, BFloat16{0xaaaa}) {
    Random random(3);
    rows = HardRows(random, 2, 64);
    job.rows = rows.data();
    job.tokens = 2;
    job.heads = 1;
    job.out_rows = kept.data();
  }
  void Write() { WriteTwin({1, 64, 1, DType::kF32}, {&job, 1}); }
};

// Every slot from a negative number on is of the bf16 tier then.
TEST(WriteTwin, NegativeSlotsOfTheOtherTierDropTheirTokens) {
  const std::vector<int64_t> slots = {-2, 1};
  TwoTokens t(6);
  t.job.slots = {slots.data(), DType::kI64};
  t.job.row_slot_offset = -4;
  t.Write();
  for (size_t i = 0; i < t.kept.size(); ++i) {
    EXPECT_EQ(t.kept[i].bits, i / 64 == 5 ? t.rows[i - 4 * 64].bits : 0xaaaa) << i;
  }
}

TEST(WriteTwin, NegativeSourcesGiveZeros) {
  const std::vector<int32_t> sources = {-1, 1};
  TwoTokens t(2);
  t.job.source_slots = {sources.data(), DType::kI32};
  t.Write();
  for (size_t d = 0; d < 64; ++d) {
    EXPECT_EQ(t.kept[d].bits, 0) << d;
    EXPECT_EQ(t.kept[64 + d].bits, t.rows[64 + d].bits) << d;
  }
}

TEST(WriteTwin, RefusesPointersThatAreNotAligned) {
  const CacheShape shape{1, 64, 1, DType::kF32};
  alignas(16) static uint8_t memory[64 * 64 * 2 + 16];
  const std::vector<int32_t> slots = {0};
  WriteJob fine;
  fine.tokens = 1;
  fine.heads = 1;
  fine.rows = reinterpret_cast<const BFloat16*>(memory);
  fine.slots = {slots.data(), DType::kI32};
  fine.scales = memory;
  CheckWriteJobs(shape, {&fine, 1});
  const std::pair<const char*, std::function<void(WriteJob&, uint8_t*)>> tensors[] = {
      {"rows", [](WriteJob& j, uint8_t* at) { j.rows = reinterpret_cast<BFloat16*>(at); }},
      {"rotations", [](WriteJob& j, uint8_t* at) { j.rotation = reinterpret_cast<BFloat16*>(at); }},
      {"codes", [](WriteJob& j, uint8_t* at) { j.codes = at; }},
      {"scales", [](WriteJob& j, uint8_t* at) { j.scales = at; }},
      {"output rows",
       [](WriteJob& j, uint8_t* at) { j.out_rows = reinterpret_cast<BFloat16*>(at); }}};
  for (const auto& [name, set] : tensors) {
    WriteJob job = fine;
    set(job, memory + 8);
    try {
      CheckWriteJobs(shape, {&job, 1});
      ADD_FAILURE() << name << " that are not aligned were taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_EQ(std::string(error.what())
                    .find(std::string(name) + " of write job 0 are not at a multiple of 16 bytes"),
                0U)
          << error.what();
    }
    set(job, memory + 16);
    CheckWriteJobs(shape, {&job, 1});
  }
}

TEST(WriteTwin, RefusesWhatDoesNotFit) {
  const CacheShape shape{1, 64, 1, DType::kF32};
  WriteJob job;
  job.tokens = 1;
  job.heads = 1;
  EXPECT_THROW(WriteTwin(shape, {&job, 1}), Error);  // no rows
  const BFloat16 row[64] = {};
  job.rows = row;
  job.clip_index = 64;
  EXPECT_THROW(WriteTwin(shape, {&job, 1}), Error);
  job.clip_index = -1;
  for (const int64_t groups : {0, 3, 8}) {
    EXPECT_THROW(WriteTwin({1, 64, groups, DType::kF32}, {&job, 1}), Error) << groups;
  }
  job.slots.type = DType::kF32;
  EXPECT_THROW(WriteTwin(shape, {&job, 1}), Error);
  job.slots.type = DType::kI32;
  for (const auto& [tokens, heads] :
       {std::pair{int64_t{1} << 62, int64_t{4}}, {int64_t{0}, int64_t{1} << 32}}) {
    job.tokens = tokens;
    job.heads = heads;
    EXPECT_THROW(CheckWriteJobs(shape, {&job, 1}), Error) << tokens;
  }
}

}  // namespace
}  // namespace oscar::test
