// Slot numbers whose byte offsets do not fit 32 bits (far_slots.h).
#include <gtest/gtest.h>

#include "gpu/device_case.h"
#include "gpu/far_slots.h"
#include "gpu/write_rows.h"

namespace oscar::test {
namespace {

DecodeShape Shape() {
  DecodeShape shape;
  shape.cache = {8, 128, 1, DType::kF32};
  shape.q_heads = 32;
  return shape;
}

// A buffer that holds `small` from `slots` slots on, and nothing defined before.
template <typename T>
DeviceBuffer Far(const std::vector<T>& small, int64_t slots, int64_t slot_bytes) {
  const auto bytes = static_cast<int64_t>(small.size() * sizeof(T));
  DeviceBuffer buffer(slots * slot_bytes + bytes);
  buffer.Upload(small.data(), bytes, slots * slot_bytes);
  return buffer;
}

bool HaveMemory(int64_t bytes) { return QueryDevice(CurrentDevice()).free_bytes > bytes; }

TEST(FarSlotsGpu, Decode) {
  OSCAR_NEED_DEVICE();
  constexpr int64_t kNeeded = int64_t{52} << 30;
  if (!HaveMemory(kNeeded)) GTEST_SKIP() << "needs " << (kNeeded >> 30) << " GiB of device memory";
  DecodeCase c(Shape(), {{700, 20}, {65, 3}}, 31);
  const DecodeResult reference = Reference(c);
  const CacheShape& s = c.shape.cache;
  const DeviceBuffer k_codes = Far(c.k_codes, kFarQuantised, s.heads * s.CodeBytes());
  const DeviceBuffer v_codes = Far(c.v_codes, kFarQuantised, s.heads * s.CodeBytes());
  const DeviceBuffer k_scales = Far(c.k_scale_bytes, kFarQuantised, s.heads * s.ScaleBytes());
  const DeviceBuffer v_scales = Far(c.v_scale_bytes, kFarQuantised, s.heads * s.ScaleBytes());
  const DeviceBuffer k_rows = Far(c.k_rows, kFarRows, s.heads * s.dim * 2);
  const DeviceBuffer v_rows = Far(c.v_rows, kFarRows, s.heads * s.dim * 2);
  c.quantised_slots = Moved(c.quantised_slots, kFarQuantised);
  c.row_slots = Moved(c.row_slots, kFarRows);
  for (const bool wide : {false, true}) {
    c.wide_slots = wide;
    DeviceDecode device(c);
    device.inputs().quantised = {k_codes.As<uint8_t>(), v_codes.As<uint8_t>(), k_scales.data(),
                                 v_scales.data(), kFarQuantised + c.quantised_pool};
    device.inputs().rows = {k_rows.As<BFloat16>(), v_rows.As<BFloat16>(), kFarRows + c.row_pool};
    const Distance distance = Compare(device.Run(), reference);
    EXPECT_LE(distance.output, 1e-3) << wide;
    EXPECT_LE(distance.lse, 1e-4) << wide;
  }
}

TEST(FarSlotsGpu, Write) {
  OSCAR_NEED_DEVICE();
  constexpr int64_t kNeeded = int64_t{24} << 30;
  if (!HaveMemory(kNeeded)) GTEST_SKIP() << "needs " << (kNeeded >> 30) << " GiB of device memory";
  // Tokens go to slots 0, 1, ... behind the far ones; every fifth to the bf16 tier.
  const CacheShape shape = Shape().cache;
  constexpr int64_t kTokens = 100, kOffset = int64_t{1} << 33;
  Random random(5);
  const std::vector<BFloat16> rows = HardRows(random, kTokens * shape.heads, shape.dim);
  std::vector<int64_t> near, far;
  for (int64_t i = 0; i < kTokens; ++i) {
    near.push_back(i % 5 == 0 ? kOffset + i : i);
    far.push_back(i % 5 == 0 ? kOffset + kFarRows + i : kFarQuantised + i);
  }
  const int64_t code_bytes = shape.heads * shape.CodeBytes();
  const int64_t scale_bytes = shape.heads * shape.ScaleBytes();
  const int64_t row_size = shape.heads * shape.dim;
  std::vector<uint8_t> codes(static_cast<size_t>(kTokens * code_bytes), 0xaa);
  std::vector<uint8_t> scales(static_cast<size_t>(kTokens * scale_bytes), 0xaa);
  std::vector<BFloat16> kept(static_cast<size_t>(kTokens * row_size), BFloat16{0xaaaa});
  const DeviceBuffer far_codes = Far(codes, kFarQuantised, code_bytes);
  const DeviceBuffer far_scales = Far(scales, kFarQuantised, scale_bytes);
  const DeviceBuffer far_kept = Far(kept, kFarRows, row_size * 2);
  WriteJob job;
  job.tokens = kTokens;
  job.heads = shape.heads;
  job.row_slot_offset = kOffset;
  job.clip_index = ClipIndexOf(0.96, shape.dim);
  job.rows = rows.data();
  job.slots = {near.data(), DType::kI64};
  job.codes = codes.data();
  job.scales = scales.data();
  job.out_rows = kept.data();
  WriteTwin(shape, {&job, 1});
  const DeviceBuffer device_rows = ToDevice(rows), slots = ToDevice(far);
  job.rows = device_rows.As<BFloat16>();
  job.slots.data = slots.data();
  job.codes = far_codes.As<uint8_t>();
  job.scales = far_scales.data();
  job.out_rows = far_kept.As<BFloat16>();
  const DeviceStream stream;
  LaunchWrite(shape, {&job, 1}, stream.get());
  stream.Synchronize();
  std::vector<uint8_t> found_codes(codes.size()), found_scales(scales.size());
  std::vector<BFloat16> found_kept(kept.size());
  far_codes.Download(found_codes.data(), kTokens * code_bytes, kFarQuantised * code_bytes);
  far_scales.Download(found_scales.data(), kTokens * scale_bytes, kFarQuantised * scale_bytes);
  far_kept.Download(found_kept.data(), kTokens * row_size * 2, kFarRows * row_size * 2);
  EXPECT_EQ(found_codes, codes);
  EXPECT_EQ(found_scales, scales);
  int64_t different = 0;
  for (size_t i = 0; i < kept.size(); ++i) different += kept[i].bits != found_kept[i].bits;
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace oscar::test
