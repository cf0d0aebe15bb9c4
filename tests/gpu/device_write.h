// Runs write cases on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/device_case.h"
#include "gpu/write_case.h"

namespace oscar::test {

inline Written OnDevice(const WriteCase& c) {
  const Written blank = Blank(c);
  const std::vector<int32_t> narrow(c.slots.begin(), c.slots.end());
  const DeviceBuffer rows = ToDevice(c.rows), rotation = ToDevice(c.rotation);
  const DeviceBuffer slots = c.wide ? ToDevice(c.slots) : ToDevice(narrow);
  const DeviceBuffer codes = ToDevice(blank.codes), scales = ToDevice(blank.scales);
  const DeviceBuffer kept = ToDevice(blank.rows);
  WriteJob job = Job(c);
  job.rows = rows.As<BFloat16>();
  job.rotation = c.rotation.empty() ? nullptr : rotation.As<BFloat16>();
  if (!c.slots.empty()) {
    job.slots = {slots.data(), c.wide ? DType::kI64 : DType::kI32};
    job.codes = codes.As<uint8_t>() + c.FirstCode();
    job.scales = scales.As<uint8_t>() + c.FirstScale();
  }
  job.out_rows = kept.As<BFloat16>();
  const DeviceStream stream;
  LaunchWrite(c.shape, {&job, 1}, stream.get());
  stream.Synchronize();
  return {FromDevice<uint8_t>(codes, static_cast<int64_t>(blank.codes.size())),
          FromDevice<uint8_t>(scales, static_cast<int64_t>(blank.scales.size())),
          FromDevice<BFloat16>(kept, static_cast<int64_t>(blank.rows.size()))};
}

}  // namespace oscar::test
