// The kernels on what the public kernels read and wrote (see tests/cuda/official_twin_test.cc).
#include <gtest/gtest.h>

#include "gpu/decode_vectors.h"
#include "gpu/device_case.h"
#include "gpu/write_vectors.h"

namespace oscar::test {
namespace {

TEST(OfficialGpu, WritersBytes) {
  OSCAR_NEED_DEVICE();
  WriteVectorReader reader;
  int64_t cases = 0;
  const DeviceStream stream;
  for (const WriteVector& v : reader.Read()) {
    WrittenBytes found(v);
    const DeviceBuffer rows = ToDevice(v.rows), source = ToDevice(v.source);
    const DeviceBuffer target = ToDevice(v.target), codes = ToDevice(found.codes);
    const DeviceBuffer scales = ToDevice(found.scales);
    WriteJob job = v.Job();
    job.rows = rows.As<BFloat16>();
    job.source_slots = {source.data(), DType::kI64};
    job.slots = {target.data(), DType::kI64};
    job.codes = codes.As<uint8_t>();
    job.scales = scales.data();
    LaunchWrite(v.shape, {&job, 1}, stream.get());
    stream.Synchronize();
    found.codes = FromDevice<uint8_t>(codes, static_cast<int64_t>(found.codes.size()));
    found.scales = FromDevice<uint8_t>(scales, static_cast<int64_t>(found.scales.size()));
    ExpectOfficial(v, found);
    ++cases;
  }
  EXPECT_GT(cases, 0) << "no case in " << OfficialVectors() / "quant";
}

TEST(OfficialGpu, DecodeAttention) {
  OSCAR_NEED_DEVICE();
  int64_t cases = 0;
  for (DecodeVector& v : ReadDecodeVectors()) {
    DeviceDecode device(v.c);
    ExpectNearOfficial(v, device.Run(), "device");
    ++cases;
  }
  EXPECT_GT(cases, 0) << "no case in " << OfficialVectors() / "decode";
}

}  // namespace
}  // namespace oscar::test
