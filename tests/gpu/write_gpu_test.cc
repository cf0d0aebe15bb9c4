// Writes on the device against the CPU twin, bit for bit where the arithmetic is exact.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "gpu/device_write.h"

namespace oscar::test {
namespace {

int64_t Differences(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

void ExpectEqual(const WriteCase& c, const std::string& what) {
  SCOPED_TRACE(what);
  const Written host = OnHost(c), device = OnDevice(c);
  EXPECT_EQ(Differences(host.codes, device.codes), 0);
  EXPECT_EQ(Differences(host.scales, device.scales), 0);
  int64_t rows = 0;
  for (size_t i = 0; i < host.rows.size(); ++i) rows += host.rows[i].bits != device.rows[i].bits;
  EXPECT_EQ(rows, 0);
}

TEST(WriteGpu, GivenRowsGiveTheTwinsBytes) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t groups : {1, 2, 4, 8, 16}) {
      if (dim / groups < 16) continue;
      for (const double clip : {0.0, 0.5, 0.85, 0.88, 0.92, 0.96, 0.999, 1.0}) {
        for (const ClipRule rule : {ClipRule::kOrderStatistic, ClipRule::kBisection}) {
          WriteCase c({3, dim, groups, DType::kF32}, 331, 7);
          c.clip = clip;
          c.rule = rule;
          ExpectEqual(c, std::to_string(dim) + "/" + std::to_string(groups) + " clip " +
                             std::to_string(clip) + " rule " +
                             std::to_string(static_cast<int>(rule)));
        }
      }
    }
  }
}

TEST(WriteGpu, ScaleTypesSlotsAndTiers) {
  OSCAR_NEED_DEVICE();
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t heads : {1, 2, 5, 8}) {
      for (const int64_t tokens : {1, 2, 15, 16, 17, 500}) {
        WriteCase c({heads, 128, 1, type}, tokens, 3);
        c.clip = 0.96;
        c.wide = heads % 2 == 0;
        c.KeepEveryThird();
        ExpectEqual(c, std::string(DTypeName(type)) + " heads " + std::to_string(heads) +
                           " tokens " + std::to_string(tokens));
      }
    }
  }
}

TEST(WriteGpu, NegativeSlotsDropTheirTokens) {
  OSCAR_NEED_DEVICE();
  for (const bool wide : {false, true}) {
    for (const int64_t heads : {2, 4}) {
      WriteCase c({heads, 128, 1, DType::kF32}, 70, 8);
      c.wide = wide;
      c.KeepEveryThird();
      c.DropEveryFourth();
      ExpectEqual(c, std::to_string(heads) + (wide ? " wide" : " narrow"));
    }
  }
}

TEST(WriteGpu, NegativeSourcesAndSlotsOfTheBFloat16Tier) {
  OSCAR_NEED_DEVICE();
  Random random(9);
  const CacheShape shape{2, 128, 1, DType::kF32};
  const std::vector<BFloat16> rows = HardRows(random, 40 * 2, 128);
  std::vector<int64_t> slots, sources;
  for (int64_t i = 0; i < 40; ++i) {
    slots.push_back(i % 4 == 1 ? -3 : i);  // of the bf16 tier, which begins at -8
    sources.push_back(i % 5 == 2 ? -1 : 39 - i);
  }
  std::vector<BFloat16> expected(48 * 2 * 128, BFloat16{0xaaaa});
  const DeviceBuffer in = ToDevice(rows), to = ToDevice(slots), from = ToDevice(sources);
  const DeviceBuffer out = ToDevice(expected);
  WriteJob job;
  job.tokens = 40;
  job.heads = 2;
  job.row_slot_offset = -8;
  WriteJob twin = job;
  job.rows = in.As<BFloat16>();
  job.source_slots = {from.data(), DType::kI64};
  job.slots = {to.data(), DType::kI64};
  job.out_rows = out.As<BFloat16>();
  twin.rows = rows.data();
  twin.source_slots = {sources.data(), DType::kI64};
  twin.slots = {slots.data(), DType::kI64};
  twin.out_rows = expected.data();
  WriteTwin(shape, {&twin, 1});
  const DeviceStream stream;
  LaunchWrite(shape, {&job, 1}, stream.get());
  stream.Synchronize();
  const auto found = FromDevice<BFloat16>(out, static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].bits, expected[i].bits) << i;
}

// Ordered integers of bf16 numbers: neighbours differ by one.
int32_t Ordinal(BFloat16 x) {
  const int32_t bits = x.bits;
  return (bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits;
}

TEST(WriteGpu, RotatedRowsAreWithinOneStepAndTheirCodesExact) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool per_head : {false, true}) {
      WriteCase c({4, dim, 1, DType::kF32}, 203, 21);
      Random random(5);
      for (BFloat16& x : c.rows) x = ToBFloat16(static_cast<float>(random.Normal()));
      c.per_head = per_head;
      c.Rotate(9);
      c.clip = 0.92;
      // First everything to the bf16 tier.
      const WriteCase rows = AllToRows(c);
      const Written host = OnHost(rows), device = OnDevice(rows);
      const auto count = static_cast<size_t>(c.tokens * 4 * dim);
      for (size_t i = 0; i < count; ++i) {
        // Near zero one step is far below the rounding of the sum itself: 2^-20 of its terms' size.
        const float a = ToFloat(host.rows[i]), b = ToFloat(device.rows[i]);
        ASSERT_TRUE(std::abs(Ordinal(host.rows[i]) - Ordinal(device.rows[i])) <= 1 ||
                    std::abs(a - b) < 1e-5F)
            << a << " " << b;
      }
      // Then quantised: equal to the twin on the kernel's own rows.
      const WriteCase own = OnRotated(c, RowsOf(c, device));
      const Written expected = OnHost(own), found = OnDevice(c);
      EXPECT_EQ(Differences(expected.codes, found.codes), 0) << dim << per_head;
      EXPECT_EQ(Differences(expected.scales, found.scales), 0) << dim << per_head;
    }
  }
}

// Enough for every warpgroup of a large GPU to go several times through its buffers.
constexpr int64_t kManyTokens = 20000;

TEST(WriteGpu, ManyRows) {
  OSCAR_NEED_DEVICE();
  WriteCase c({8, 128, 1, DType::kF32}, kManyTokens, 31);
  c.clip = 0.92;
  ExpectEqual(c, "many tokens");
}

TEST(WriteGpu, ManyRotatedRows) {
  OSCAR_NEED_DEVICE();
  WriteCase c({8, 128, 1, DType::kF32}, kManyTokens, 32);
  Random random(33);
  // Rows of any size, so that the sums stay finite.
  for (BFloat16& x : c.rows) x = ToBFloat16(static_cast<float>(random.Normal()));
  c.Rotate(34);
  c.clip = 0.96;
  const Written rotated = OnDevice(AllToRows(c));
  // A sample against float64: half a bf16 step, at most 2^-8 of the number, and the roundings of a
  // float32 sum of terms that add up to 10 or so in size.
  for (size_t row = 0; row < c.rows.size() / 128; row += 997) {
    for (size_t j = 0; j < 128; ++j) {
      double expected = 0;
      for (size_t d = 0; d < 128; ++d) {
        expected += static_cast<double>(ToFloat(c.rows[row * 128 + d])) *
                    static_cast<double>(ToFloat(c.rotation[d * 128 + j]));
      }
      ASSERT_NEAR(static_cast<double>(ToFloat(rotated.rows[row * 128 + j])), expected,
                  0x1p-8 * std::abs(expected) + 1e-4)
          << row << " " << j;
    }
  }
  const WriteCase own = OnRotated(c, RowsOf(c, rotated));
  const Written expected = OnHost(own), found = OnDevice(c), again = OnDevice(c);
  EXPECT_EQ(Differences(expected.codes, found.codes), 0);
  EXPECT_EQ(Differences(expected.scales, found.scales), 0);
  EXPECT_EQ(Differences(found.codes, again.codes), 0);
  EXPECT_EQ(Differences(found.scales, again.scales), 0);
}

TEST(WriteGpu, FlushGathersAndJobsShareALaunch) {
  OSCAR_NEED_DEVICE();
  // Keys and values of eight window rows move to the 2-bit tier; a third job rotates queries.
  const CacheShape shape{2, 128, 1, DType::kF32};
  Random random(44);
  std::vector<BFloat16> window = HardRows(random, 64 * 2, 128), q = HardRows(random, 5 * 8, 128);
  std::vector<BFloat16> rotation;
  for (int i = 0; i < 128 * 128; ++i) {
    rotation.push_back(ToBFloat16(static_cast<float>(random.Normal() / 11)));
  }
  const std::vector<int32_t> source = {40, 41, 42, 43, 44, 45, 46, 47};
  const std::vector<int32_t> target = {16, 17, 18, 19, 20, 21, 22, 23};
  const auto run = [&](auto&& place, auto&& launch) {
    std::vector<WriteJob> jobs(3);
    for (int i = 0; i < 2; ++i) {
      WriteJob& job = jobs[static_cast<size_t>(i)];
      job.rows = place(window);
      job.tokens = 8;
      job.heads = 2;
      job.source_slots = {place(source), DType::kI32};
      job.slots = {place(target), DType::kI32};
      job.clip_index = ClipIndexOf(i == 0 ? 0.96 : 0.92, 128);
      job.clip_rule = ClipRule::kBisection;
    }
    WriteJob& job = jobs[2];
    job.rows = place(q);
    job.tokens = 5;
    job.heads = 8;
    job.rotation = place(rotation);
    launch(jobs);
  };
  Written k, v;
  const auto blank = [] {
    return Written{
        std::vector<uint8_t>(32 * 2 * 32, 0xaa), std::vector<uint8_t>(32 * 2 * 8, 0xaa), {}};
  };
  k = blank();
  v = blank();
  std::vector<BFloat16> rotated(q.size());
  run([](auto& x) { return x.data(); },
      [&](std::vector<WriteJob>& jobs) {
        jobs[0].codes = k.codes.data();
        jobs[0].scales = k.scales.data();
        jobs[1].codes = v.codes.data();
        jobs[1].scales = v.scales.data();
        jobs[2].out_rows = rotated.data();
        WriteTwin(shape, jobs);
      });
  std::vector<DeviceBuffer> buffers;
  const Written empty = blank();
  const DeviceBuffer kc = ToDevice(empty.codes), ks = ToDevice(empty.scales);
  const DeviceBuffer vc = ToDevice(empty.codes), vs = ToDevice(empty.scales);
  const DeviceBuffer out = ToDevice(q);
  const DeviceStream stream;
  run(
      [&]<typename T>(const std::vector<T>& x) {
        buffers.push_back(ToDevice(x));
        return static_cast<const T*>(buffers.back().template As<T>());
      },
      [&](std::vector<WriteJob>& jobs) {
        jobs[0].codes = kc.As<uint8_t>();
        jobs[0].scales = ks.data();
        jobs[1].codes = vc.As<uint8_t>();
        jobs[1].scales = vs.data();
        jobs[2].out_rows = out.As<BFloat16>();
        LaunchWrite(shape, jobs, stream.get());
      });
  stream.Synchronize();
  EXPECT_EQ(FromDevice<uint8_t>(kc, 2048), k.codes);
  EXPECT_EQ(FromDevice<uint8_t>(ks, 512), k.scales);
  EXPECT_EQ(FromDevice<uint8_t>(vc, 2048), v.codes);
  EXPECT_EQ(FromDevice<uint8_t>(vs, 512), v.scales);
  const auto device_q = FromDevice<BFloat16>(out, static_cast<int64_t>(q.size()));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const double a = static_cast<double>(ToFloat(rotated[i])),
                 b = static_cast<double>(ToFloat(device_q[i]));
    difference += (a - b) * (a - b);
    norm += a * a;
  }
  EXPECT_LE(std::sqrt(difference / norm), 0x1p-9);
}

}  // namespace
}  // namespace oscar::test
