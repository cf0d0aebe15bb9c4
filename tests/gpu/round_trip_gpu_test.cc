// Rows written by the write kernel and read by the decode kernel, without the host between them.
#include <gtest/gtest.h>

#include "gpu/device_case.h"
#include "gpu/poison.h"
#include "gpu/round_trip.h"

namespace oscar::test {
namespace {

DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim, int64_t groups, DType scale) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, groups, scale};
  shape.q_heads = q_heads;
  return shape;
}

// Launches both writes into the buffers that the decode kernel reads.
void WriteOnDevice(const RoundTrip& trip, DeviceDecode& device, const BFloat16* rotation,
                   const DeviceBuffer& k, const DeviceBuffer& v, const DeviceBuffer& targets) {
  const DecodeInputs& in = device.inputs();
  WriteJob jobs[2] = {trip.Job(), trip.Job()};
  jobs[0].rows = k.As<BFloat16>();
  jobs[0].codes = in.quantised.k_codes;
  jobs[0].scales = in.quantised.k_scales;
  jobs[0].out_rows = in.rows.k;
  jobs[1].rows = v.As<BFloat16>();
  jobs[1].codes = in.quantised.v_codes;
  jobs[1].scales = in.quantised.v_scales;
  jobs[1].out_rows = in.rows.v;
  for (WriteJob& job : jobs) {
    job.slots = {targets.data(), DType::kI64};
    job.rotation = rotation;
  }
  LaunchWrite(trip.c.shape.cache, jobs, device.stream().get());
}

TEST(RoundTripGpu, WritesAreReadBack) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape :
       {Shape(32, 8, 128, 1, DType::kF32), Shape(8, 2, 128, 4, DType::kF16),
        Shape(4, 4, 64, 1, DType::kF32), Shape(6, 2, 256, 2, DType::kBF16)}) {
    for (const double clip : kRoundTripClips) {
      SCOPED_TRACE(std::to_string(shape.cache.dim) + " clip " + std::to_string(clip));
      RoundTrip trip(shape, 333, 21, clip, 40);
      DeviceDecode device(trip.c);  // the buffers are still blank
      const DeviceBuffer k = ToDevice(trip.k), v = ToDevice(trip.v);
      WriteOnDevice(trip, device, nullptr, k, v, ToDevice(trip.targets));
      device.stream().Synchronize();
      const DecodeResult found = device.Run();
      trip.WriteOnHost();
      const Distance distance = Compare(found, Reference(trip.c));
      EXPECT_LE(distance.output, 1e-3);
      EXPECT_LE(distance.lse, 1e-4);
    }
  }
}

// Neither kernel reads shared memory that it did not write; both give equal bits every time.
TEST(RoundTripGpu, SharedMemoryIsNotTrusted) {
  OSCAR_NEED_DEVICE();
  RoundTrip trip(Shape(32, 8, 128, 1, DType::kF32), 700, 40, 0.96, 41);
  Random random(42);
  std::vector<BFloat16> rotation;
  for (int i = 0; i < 128 * 128; ++i)
    rotation.push_back(ToBFloat16(static_cast<float>(random.Normal() / 11.3)));
  DeviceDecode device(trip.c);
  const DeviceBuffer k = ToDevice(trip.k), v = ToDevice(trip.v), targets = ToDevice(trip.targets);
  const DeviceBuffer matrix = ToDevice(rotation);
  DecodeResult first;
  for (int i = 0; i < 4; ++i) {
    if (i > 0) PoisonSharedMemory(device.stream().get());
    WriteOnDevice(trip, device, matrix.As<BFloat16>(), k, v, targets);
    device.stream().Synchronize();
    device.workspace().Plan(trip.c.lengths, device.stream().get());
    device.stream().Synchronize();
    if (i > 0) PoisonSharedMemory(device.stream().get());
    const DecodeResult result = device.RunPlanned();
    if (i == 0) {
      first = result;
      continue;
    }
    EXPECT_EQ(first.o, result.o);
    EXPECT_EQ(first.lse, result.lse);
  }
  for (const float x : first.o) ASSERT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace oscar::test
