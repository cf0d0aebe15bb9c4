// The benchmark device that runs the kernels. Internal.
#pragma once

#include <memory>
#include <optional>

#include "oscar/bench/bench_device.h"
#include "oscar/bench/cache_pool.h"
#include "oscar/bench/torch_part.h"

namespace oscar {

class KernelBench final : public BenchDevice {
 public:
  explicit KernelBench(int device);

  DeviceInfo Info() override { return info_; }
  double ReadBandwidth() override;
  Spread Decode(const DecodeCase& c) override;
  Spread Write(const WriteCase& c) override;
  double Plan(const DecodeCase& c) override;
  std::optional<Spread> Sdpa(const DecodeCase& c, SdpaKernel kernel) override;
  bool HasTorch() override { return TorchPartAvailable(); }
  StepTimes Step(const StepCase& c) override;

 private:
  CachePool& PoolFor(const DecodeCase& c);

  int device_;
  DeviceInfo info_;
  DeviceStream stream_;
  std::unique_ptr<CachePool> pools_[2];  // by format
  double read_bandwidth_ = 0;
};

}  // namespace oscar
