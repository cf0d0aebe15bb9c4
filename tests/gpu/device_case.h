// Runs decode cases on the device.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "gpu/decode_case.h"

namespace oscar::test {

inline bool HaveDevice() { return DeviceCount() > 0; }

#define OSCAR_NEED_DEVICE()                                                  \
  if (!::oscar::test::HaveDevice()) {                                        \
    GTEST_SKIP() << (::oscar::HasCuda() ? "no CUDA device on this machine"   \
                                        : "this build has no CUDA kernels"); \
  }                                                                          \
  ::oscar::UseDevice(0)

template <typename T>
DeviceBuffer ToDevice(const std::vector<T>& x) {
  // At least 16 bytes, so that an empty tensor has an address.
  DeviceBuffer buffer(static_cast<int64_t>(std::max<size_t>(16, x.size() * sizeof(T))));
  if (!x.empty()) buffer.Upload(x.data(), static_cast<int64_t>(x.size() * sizeof(T)));
  return buffer;
}

template <typename T>
std::vector<T> FromDevice(const DeviceBuffer& buffer, int64_t count) {
  std::vector<T> x(static_cast<size_t>(count));
  if (count > 0) buffer.Download(x.data(), count * static_cast<int64_t>(sizeof(T)));
  return x;
}

// A case's tensors on the device.
class DeviceDecode {
 public:
  explicit DeviceDecode(DecodeCase& c)
      : case_(c),
        k_codes_(ToDevice(c.k_codes)),
        v_codes_(ToDevice(c.v_codes)),
        k_scales_(ToDevice(c.k_scale_bytes)),
        v_scales_(ToDevice(c.v_scale_bytes)),
        k_rows_(ToDevice(c.k_rows)),
        v_rows_(ToDevice(c.v_rows)),
        q_(ToDevice(c.q)),
        rotation_(ToDevice(c.v_rotation)),
        workspace_(c.shape, std::max<int64_t>(1, static_cast<int64_t>(c.lengths.size()))) {
    in_ = c.HostInputs();
    if (c.wide_slots) {
      quantised_slots_ = ToDevice(c.quantised_slots);
      row_slots_ = ToDevice(c.row_slots);
    } else {
      quantised_slots_ = ToDevice(c.quantised_slots32);
      row_slots_ = ToDevice(c.row_slots32);
    }
    in_.q = q_.As<BFloat16>();
    in_.quantised = {k_codes_.As<uint8_t>(), v_codes_.As<uint8_t>(), k_scales_.data(),
                     v_scales_.data(), c.quantised_pool};
    in_.rows = {k_rows_.As<BFloat16>(), v_rows_.As<BFloat16>(), c.row_pool};
    in_.quantised_slots.data = quantised_slots_.data();
    in_.row_slots.data = row_slots_.data();
    if (in_.v_rotation != nullptr) in_.v_rotation = rotation_.As<BFloat16>();
    o_ = DeviceBuffer(std::max<int64_t>(16, c.outputs() * 4));
    lse_ = DeviceBuffer(std::max<int64_t>(16, c.rows() * 4));
  }

  // Plans, fills partial results and outputs with NaN, runs.
  DecodeResult Run() {
    workspace_.Plan(case_.lengths, stream_.get());
    return RunPlanned();
  }
  DecodeResult Run(DecodePlan plan) {
    workspace_.SetPlan(std::move(plan), stream_.get());
    return RunPlanned();
  }
  DecodeResult RunPlanned() {
    stream_.Synchronize();
    workspace_.PoisonPartials(0xff);
    o_.Fill(0xff);
    lse_.Fill(0xff);
    LaunchDecode(workspace_, in_, outputs(), stream_.get());
    stream_.Synchronize();
    return Result();
  }
  DecodeResult Result() const {
    return {FromDevice<float>(o_, case_.outputs()), FromDevice<float>(lse_, case_.rows())};
  }

  DecodeOutputs outputs() const { return {o_.data(), DType::kF32, lse_.As<float>()}; }
  DecodeWorkspace& workspace() { return workspace_; }
  const DeviceStream& stream() const { return stream_; }
  DecodeInputs& inputs() { return in_; }

 private:
  DecodeCase& case_;
  DeviceBuffer k_codes_, v_codes_, k_scales_, v_scales_, k_rows_, v_rows_, q_, rotation_;
  DeviceBuffer quantised_slots_, row_slots_, o_, lse_;
  DeviceStream stream_;
  DecodeWorkspace workspace_;
  DecodeInputs in_;
};

}  // namespace oscar::test
